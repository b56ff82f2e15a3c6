"use strict";
// The collapse view: one length at a time, in every dtype. All lengths were measured; the slider only looks.
const lengths = (function () {
  const { get, put, button, written } = kit;
  let looked = null; // the length, kept when new numbers arrive

  // `sides`: one, or two that stand beside each other, with their names; both are of the same lengths.
  function show(sides, names) {
    const place = get("lengths");
    place.textContent = "";
    if (sides === null) { return; }
    const found = sides[0];
    const last = found.lengths[found.lengths.length - 1];
    const n = Math.min(looked === null ? last : looked, last);
    const bar = put(place, "p", "");
    bar.className = "bar";
    put(bar, "label", "Length").htmlFor = "length";
    const slider = put(bar, "input", "");
    Object.assign(slider, { type: "range", id: "length", min: found.lengths[0], max: last, step: 1, value: n });
    const said = put(bar, "output", "");
    said.htmlFor = "length";
    const at = put(place, "div", "");
    const range = ends(sides);
    const look = (value) => {
      looked = value;
      slider.value = value;
      said.textContent = "n = " + value;
      at.textContent = "";
      sides.forEach((side, number) => { table(at, side, value, range, look, names[number] ? names[number] + ". " : ""); });
    };
    slider.addEventListener("input", () => look(Number(slider.value)));
    look(n);
  }

  // The decades that all marks lie in: what is exactly 0 stands at the left edge.
  function ends(sides) {
    const all = sides.flatMap((side) => side.dtypes).flatMap((one) => [...one.float64, ...one.noise, ...one.step]).filter((value) => value > 0);
    const decades = (all.length ? all : [1]).map(Math.log10);
    const [low, high] = [Math.min(...decades), Math.max(...decades)];
    return { low, width: Math.max(high - low, 1e-9) };
  }

  function table(place, found, n, range, look, name) {
    // Above what scrolls sideways, not a caption in it: at 400 pixels that would be cut off.
    put(place, "p", name + "Distance of y from y*, which has the last item once more, at n = " + n);
    const scroll = put(place, "div", "");
    scroll.className = "scroll";
    const made = put(scroll, "table", "");
    made.setAttribute("aria-label", name + "Distances at n = " + n);
    const top = put(put(made, "thead", ""), "tr", "");
    ["dtype", "measured", "in float64", "noise of the difference", "one step", "float64 distance (line) over the noise (bar)", "at this n", "first hidden", "hidden range"].forEach((word) => {
      put(top, "th", word).scope = "col";
    });
    const body = put(made, "tbody", "");
    const index = found.lengths.indexOf(n);
    found.dtypes.forEach((one) => {
      const line = put(body, "tr", "");
      put(line, "th", one.dtype).scope = "row";
      [one.distance, one.float64, one.noise, one.step].forEach((column) => { put(line, "td", written(column[index])); });
      marks(put(line, "td", ""), one, index, range);
      const word = put(line, "td", one.hidden[index] ? "hidden" : "told apart");
      word.className = one.hidden[index] ? "hides" : "tells";
      const first = one.hidden.indexOf(true);
      length(put(line, "td", ""), first < 0 ? null : found.lengths[first], "not up to n = " + found.lengths[found.lengths.length - 1], look);
      const cell = put(line, "td", "");
      length(cell, one.from, one.status, look);
      if (one.from !== null) { put(cell, "span", " " + one.status); }
    });
  }

  function length(cell, n, otherwise, look) {
    if (n === null) { cell.textContent = otherwise; return; }
    button(cell, "n = " + n, () => { look(n); get("length").focus(); });
  }

  function marks(cell, one, index, range) {
    const share = (value) => (value > 0 ? Math.min(Math.max((Math.log10(value) - range.low) / range.width, 0), 1) : 0);
    const track = put(cell, "div", "");
    track.className = "track";
    track.setAttribute("aria-hidden", "true"); // the numbers stand in the row
    put(track, "span", "").className = "floor";
    put(track, "span", "").className = "mark";
    track.style.setProperty("--floor", share(one.noise[index]));
    track.style.setProperty("--mark", share(one.float64[index]));
  }

  return { show };
})();
