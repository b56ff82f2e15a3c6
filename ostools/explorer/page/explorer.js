"use strict";
// Asks the server for what is chosen, first what is quicker and then the measurement, and shows each answer.
(function () {
  const PAUSE = 80; // milliseconds after the last keystroke
  const { get, put, post, say } = kit;
  let running = null; // the requests of the last thing asked; to abort them ends the run
  let waiting = null;
  let shown = null;

  function stop(text) {
    clearTimeout(waiting);
    if (running) { running.abort(); running = null; }
    get("stop").hidden = true;
    say(text);
  }

  function clear() {
    shown = null;
    ["kind", "code", "place"].forEach((id) => { get(id).textContent = ""; });
    strip.clear();
    get("copy").disabled = true;
  }

  // What stands there until there is something new is not of what is typed, and must not look as if it were.
  function outdated() { get("kind").textContent = shown ? shown.kind + ", before the change" : ""; }

  function later() { stop(""); outdated(); controls.remember(); waiting = setTimeout(ask, PAUSE); }

  async function asking(asked, own) { return (await post(asked, own.signal)).json(); }

  async function ask() {
    stop("");
    const asked = controls.asked();
    if (controls.missing()) { clear(); say(controls.missing()); return; }
    const own = running = new AbortController();
    get("stop").hidden = false;
    try {
      say("Working …");
      for (let before = 0; before < controls.view().before; before += 1) {
        const first = await asking({ ...asked, before, chart: false }, own);
        if (own !== running) { return; }
        if (first.tokens) { show(first); say(first.words + ". Working …"); }
      }
      const answer = await asking(asked, own);
      if (own !== running) { return; }
      finished(answer);
    } catch (error) {
      if (error.name !== "AbortError") { finished({ error: "The explorer does not answer: " + error.message }); }
    }
  }

  function finished(answer) {
    stop("");
    if (answer.error) { clear(); say(answer.error); return; }
    show(answer);
    say(answer.words);
  }

  function show(answer) {
    shown = answer;
    get("kind").textContent = answer.kind;
    get("code").textContent = answer.code;
    get("copy").disabled = false;
    strip.show(answer);
    draw(answer);
  }

  function draw(answer) {
    const place = get("place");
    place.textContent = "";
    answer.charts.forEach((one) => chart(place, one, answer));
    document.dispatchEvent(new Event("toggle")); // draw.js draws every figure that is not drawn
  }

  function chart(place, one, answer) {
    if (one.title) { put(place, "h2", one.title); }
    one.notes.forEach((note) => { put(place, "p", note).className = "note"; });
    if (!one.chart) { return; }
    const figure = put(place, "figure", "");
    figure.dataset.chart = "";
    const plot = put(figure, "div", "");
    plot.className = "plot";
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", answer.words + ". The numbers stand above.");
    const data = document.createElement("script");
    data.type = "application/json"; // before it stands in the page: what has no type there is code
    data.textContent = one.chart;
    figure.appendChild(data);
  }

  async function copy() {
    try {
      await navigator.clipboard.writeText(get("code").textContent);
      say("The code is on the clipboard.");
    } catch (error) {
      getSelection().selectAllChildren(get("code"));
      say("The code is selected. Here the browser does not let a page use the clipboard, so copy it with the keyboard.");
    }
  }

  async function begin() {
    controls.fill(await (await fetch("start")).json());
    ["prompt", "logit"].forEach((id) => get(id).addEventListener("input", later));
    get("view").addEventListener("change", () => { controls.arrange(); later(); });
    ["layer", "head", "longest"].forEach((id) => get(id).addEventListener("input", () => { controls.moved(); later(); }));
    get("stop").addEventListener("click", () => stop("Stopped."));
    get("copy").addEventListener("click", copy);
    window.addEventListener("hashchange", () => { controls.reopen(get("prompt").value); outdated(); ask(); });
    ask();
  }

  begin();
})();
