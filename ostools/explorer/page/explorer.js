"use strict";
// Asks the server for what is chosen, and shows it. Every text goes into the page as text, none as HTML.
(function () {
  const PAUSE = 80; // milliseconds after the last keystroke
  const get = (id) => document.getElementById(id);
  const token = new URLSearchParams(location.search).get("token");
  const address = (path) => path + (token === null ? "" : "?token=" + encodeURIComponent(token));
  let views = [];
  let running = null; // the requests of the last thing asked; to abort them ends the run
  let waiting = null;
  let shown = null;
  let chosen = null; // a position

  function put(parent, name, text) {
    const made = document.createElement(name);
    made.textContent = text;
    parent.appendChild(made);
    return made;
  }

  function options(select, names, words) {
    names.forEach((name, place) => { put(select, "option", words[place]).value = name; });
  }

  function state() { return { view: get("view").value, prompt: get("prompt").value }; }

  function remember() { history.replaceState(null, "", location.pathname + location.search + "#" + new URLSearchParams(state())); }

  async function post(path, asked, signal) {
    const sent = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(asked), signal };
    return fetch(address(path), sent);
  }

  function say(text) { get("said").textContent = text; }

  function stop(text) {
    clearTimeout(waiting);
    if (running) { running.abort(); running = null; }
    get("stop").hidden = true;
    get("begin").hidden = true;
    say(text);
  }

  function clear() {
    shown = null;
    ["kind", "code", "command", "tokens", "token", "place"].forEach((id) => { get(id).textContent = ""; });
    get("copy").disabled = get("save").disabled = true;
  }

  // What stands there until there is something new is not of what is typed, and must not look as if it were.
  function outdated() { get("kind").textContent = shown ? shown.answer.kind + ", before the change" : ""; }

  function later() { stop(""); outdated(); remember(); waiting = setTimeout(() => ask(false), PAUSE); }

  async function ask(sure) {
    stop("");
    const asked = state();
    if (!asked.prompt) { clear(); say("Type a prompt."); return; }
    const own = running = new AbortController();
    const view = views.find((one) => one.name === asked.view);
    get("stop").hidden = false;
    try {
      if (view.prediction && !sure) {
        say("predicting …");
        const first = await (await post("run", { ...asked, view: view.prediction, chart: false }, own.signal)).json();
        if (own !== running) { return; }
        if (first.tokens) { show(first, { ...asked, view: view.prediction }); }
      }
      const predicted = shown && shown.asked.prompt === asked.prompt && shown.asked.view === view.prediction;
      say((predicted ? shown.answer.words + ". " : "") + "Working …");
      const answer = await (await post("run", { ...asked, sure }, own.signal)).json();
      if (own !== running) { return; }
      finished(answer, asked);
    } catch (error) {
      if (error.name !== "AbortError") { finished({ error: "The explorer does not answer: " + error.message }, asked); }
    }
  }

  function finished(answer, asked) {
    stop("");
    if (answer.error) { clear(); say(answer.error); return; }
    if (answer.forecast) {
      say("It is forecast to take about " + Math.round(answer.forecast) + " s.");
      get("begin").hidden = false;
      return;
    }
    show(answer, asked);
    say(answer.words);
  }

  function show(answer, asked) {
    shown = { answer, asked };
    get("kind").textContent = answer.kind;
    get("code").textContent = answer.code;
    get("command").textContent = answer.command;
    get("copy").disabled = get("save").disabled = false;
    if (answer.tokens.length) { strip(answer.tokens); } else { get("tokens").textContent = ""; get("token").textContent = ""; }
    draw(answer);
  }

  function strip(tokens) {
    const held = document.activeElement && document.activeElement.dataset.position; // keys keep their place when numbers arrive
    const most = Math.max(...tokens.map((one) => Math.abs(one.value || 0)), Number.MIN_VALUE);
    get("tokens").textContent = "";
    tokens.forEach((one) => {
      const button = put(get("tokens"), "button", one.token);
      button.type = "button";
      button.dataset.position = one.position;
      button.style.setProperty("--share", Math.abs(one.value || 0) / most);
      button.classList.toggle("less", one.value < 0);
      button.addEventListener("mouseenter", () => tell(one.position));
      button.addEventListener("focus", () => tell(one.position));
      button.addEventListener("click", () => { chosen = one.position; pressed(); chain(one.position); });
      if (String(one.position) === held) { button.focus(); }
    });
    pressed();
    tell(chosen !== null && chosen < tokens.length ? chosen : 0);
  }

  function pressed() {
    document.querySelectorAll("#tokens button").forEach((one) => one.setAttribute("aria-pressed", String(Number(one.dataset.position) === chosen)));
  }

  function written(value) { return value === null ? "not finite" : Number(value.toPrecision(5)).toString(); }

  function numbers(place, list, kind) {
    const table = put(place, "dl", "");
    list.forEach((one) => {
      put(table, "dt", one.name);
      const limits = one.interval ? " [" + one.interval.map(written).join(", ") + "]" : "";
      put(table, "dd", written(one.value) + limits + (kind ? " (" + kind + ")" : ""));
    });
  }

  function tell(position) {
    const one = shown && shown.answer.tokens.find((each) => each.position === position);
    if (!one) { return; }
    const place = get("token");
    place.textContent = "";
    put(put(place, "h2", "Token " + position + ": "), "bdi", one.token);
    numbers(place, one.numbers, shown.answer.kind);
  }

  // A click: the chain of bounds at the token, under its numbers.
  async function chain(position) {
    tell(position);
    const place = put(get("token"), "div", "Computing its bound chain …");
    const asked = { view: "chain", prompt: shown.asked.prompt };
    if (shown.asked.view === "chain") { place.textContent = ""; return; }
    if (running) { place.textContent = "The bound chain can be asked for when the measurement has ended."; return; }
    const own = running = new AbortController();
    get("stop").hidden = false;
    try {
      const answer = await (await post("run", asked, own.signal)).json();
      if (own !== running) { return; }
      stop(shown.answer.words);
      if (answer.error || answer.forecast) {
        place.textContent = answer.error || "The bound chain is forecast to take about " + Math.round(answer.forecast) + " s: choose it under Show.";
        return;
      }
      place.textContent = "";
      put(place, "h2", "Its bound chain, from loose to tight: " + answer.kind);
      numbers(place, answer.tokens.find((one) => one.position === position).numbers, "");
    } catch (error) {
      place.textContent = error.name === "AbortError" ? "Stopped." : "The explorer does not answer: " + error.message;
    }
  }

  function draw(answer) {
    const place = get("place");
    place.textContent = "";
    if (answer.title) { put(place, "h2", answer.title); }
    answer.notes.forEach((note) => { put(place, "p", note).className = "note"; });
    if (!answer.chart) { return; }
    const figure = put(place, "figure", "");
    figure.dataset.chart = "";
    const plot = put(figure, "div", "");
    plot.className = "plot";
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", answer.words + ". The numbers of each token stand above.");
    const data = document.createElement("script");
    data.type = "application/json"; // before it stands in the page: what has no type there is code
    data.textContent = answer.chart;
    figure.appendChild(data);
    document.dispatchEvent(new Event("toggle")); // draw.js draws every figure that is not drawn
  }

  async function copy() {
    try {
      await navigator.clipboard.writeText(get("code").textContent);
      say("The code is on the clipboard.");
    } catch (error) {
      getSelection().selectAllChildren(get("code"));
      say("The browser lets no page use the clipboard here: the code is selected, copy it by key.");
    }
  }

  async function save() {
    const ending = get("ending").value;
    const found = await post("save", { ...shown.asked, ending });
    if (!found.ok) { say((await found.json()).error); return; }
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await found.blob());
    link.download = "ostools-" + shown.asked.view + "." + ending;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  async function begin() {
    const start = await (await fetch(address("start"))).json();
    views = start.views;
    get("model").textContent = start.model;
    options(get("view"), views.map((one) => one.name), views.map((one) => one.words));
    options(get("ending"), start.endings, start.endings);
    reopen(start.prompt);
    get("prompt").addEventListener("input", later);
    get("view").addEventListener("change", later);
    get("stop").addEventListener("click", () => stop("Stopped."));
    get("begin").addEventListener("click", () => ask(true));
    get("copy").addEventListener("click", copy);
    get("save").addEventListener("click", save);
    window.addEventListener("hashchange", () => { reopen(get("prompt").value); outdated(); ask(false); });
    ask(false);
  }

  function reopen(prompt) {
    const held = new URLSearchParams(location.hash.slice(1));
    get("prompt").value = held.has("prompt") ? held.get("prompt") : prompt;
    if (views.some((one) => one.name === held.get("view"))) { get("view").value = held.get("view"); }
  }

  begin();
})();
