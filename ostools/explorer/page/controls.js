"use strict";
// What is chosen: the fields of the page, the question that they make, and the address that holds it.
const controls = (function () {
  const { get, options } = kit;
  let start = null;
  let layers = {}; // by view: each slider keeps its own number

  function view() { return start.views.find((one) => one.name === get("view").value); }

  function takes(name) { return name === "layers" ? view().layers !== null : view().takes.includes(name); }

  // The question, with nothing that its view does not take.
  function asked() {
    const found = { view: view().name, prompt: get("prompt").value };
    if (takes("layers")) { found.layer = Number(get("layer").value); }
    if (takes("head")) { found.head = Number(get("head").value); }
    if (takes("logit") && get("logit").value) { found.logit = get("logit").value; }
    if (takes("longest")) { found.longest = Number(get("longest").value); }
    return found;
  }

  // What is missing before anything can be asked; empty where nothing is.
  function missing() {
    return asked().prompt ? "" : "Type a prompt.";
  }

  function remember() {
    const held = new URLSearchParams(asked());
    history.replaceState(null, "", location.pathname + location.search + "#" + held);
  }

  function layerWords() {
    const layer = Number(get("layer").value);
    if (view().layers && view().layers[0] < 0) { return layer < 0 ? "all layers" : "layer " + layer; }
    return layer === 0 ? "0, the embedding" : String(layer);
  }

  // Shows the fields that the view takes, and says in words where the sliders stand.
  function arrange() {
    document.querySelectorAll("[data-takes]").forEach((place) => { place.hidden = !takes(place.dataset.takes); });
    if (takes("layers")) {
      [get("layer").min, get("layer").max] = view().layers;
      get("layer").value = layers[view().name] ?? view().layers[0];
      say();
    }
    say();
  }

  function say() {
    get("layer-said").textContent = layerWords();
    get("layer").setAttribute("aria-valuetext", layerWords());
    get("head-said").textContent = get("head").value < 0 ? "all heads" : "head " + get("head").value;
    get("longest-said").textContent = "n = " + get("longest").value;
  }

  function moved() { layers[view().name] = Number(get("layer").value); say(); }

  function fill(found) {
    start = found;
    get("model").textContent = start.model;
    options(get("view"), start.views.map((one) => one.name), start.views.map((one) => one.words));
    [get("head").min, get("head").max] = [-1, start.heads - 1];
    [get("longest").min, get("longest").max] = start.lengths;
    reopen(start.prompt);
  }

  // The state that the address holds; what it does not hold gets its first value.
  function reopen(prompt) {
    const held = new URLSearchParams(location.hash.slice(1));
    const value = (name, other) => held.has(name) ? held.get(name) : other;
    get("prompt").value = value("prompt", prompt);
    if (start.views.some((one) => one.name === held.get("view"))) { get("view").value = held.get("view"); }
    get("head").value = value("head", -1);
    if (held.has("layer")) { layers[view().name] = Number(held.get("layer")); }
    get("logit").value = value("logit", "");
    get("longest").value = value("longest", 32);
    arrange();
  }

  return { fill, reopen, asked, missing, remember, arrange, moved, view };
})();
