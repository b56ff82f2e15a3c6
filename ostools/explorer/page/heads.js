"use strict";
// The heads as a grid: how much of the last token's attention each of them has on one token. One can be chosen for the strip.
const heads = (function () {
  const { get, put, button, written } = kit;
  let at = null; // [layer, head] that the keys are at

  function show(found, chosen, pressed) {
    const place = get("heads");
    const held = place.contains(document.activeElement) && document.activeElement.dataset.head !== undefined;
    place.textContent = "";
    if (found === null) { at = null; return; }
    put(put(place, "h2", "Its heads: the last token's weight on token " + found.token + ": "), "bdi", found.word);
    put(place, "p", "Choose a head to colour the tokens by its weights. The arrow keys move through the grid.").className = "note";
    const all = button(place, "Mean over all heads", () => pressed(-1, -1));
    all.setAttribute("aria-pressed", String(chosen.head < 0));
    const scroll = put(place, "div", "");
    scroll.className = "scroll";
    const table = put(scroll, "table", "");
    const top = put(put(table, "thead", ""), "tr", "");
    put(top, "th", "layer");
    found.weights[0].forEach((_, head) => { put(top, "th", "head " + head).scope = "col"; });
    const body = put(table, "tbody", "");
    at = chosen.head < 0 ? at || [0, 0] : [Math.max(chosen.layer, 0), chosen.head];
    const most = Math.max(...found.weights.flat(), Number.MIN_VALUE);
    found.weights.forEach((row, layer) => {
      const line = put(body, "tr", "");
      put(line, "th", String(layer)).scope = "row";
      row.forEach((weight, head) => {
        const cell = button(put(line, "td", ""), weight.toFixed(3), () => pressed(layer, head));
        cell.dataset.layer = layer;
        cell.dataset.head = head;
        cell.style.setProperty("--share", weight / most);
        cell.setAttribute("aria-label", "layer " + layer + ", head " + head + ": " + written(weight));
        cell.setAttribute("aria-pressed", String(layer === chosen.layer && head === chosen.head));
        cell.tabIndex = layer === at[0] && head === at[1] ? 0 : -1;
        cell.addEventListener("keydown", (event) => move(event, layer, head));
      });
    });
    if (held) { go(...at); }
  }

  function move(event, layer, head) {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (step && go(layer + step[0], head + step[1])) { event.preventDefault(); }
  }

  function go(layer, head) {
    const next = document.querySelector(`#heads td button[data-layer="${layer}"][data-head="${head}"]`);
    if (!next) { return false; }
    document.querySelectorAll("#heads td button").forEach((one) => { one.tabIndex = -1; });
    next.tabIndex = 0;
    next.focus();
    at = [layer, head];
    return true;
  }

  return { show };
})();
