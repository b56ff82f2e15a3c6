"use strict";
// Draws each figure of the page at the width it has, and again when that changes.
(function () {
  const AXIS = 85; // what a panel's axis and its words take, before it is known
  const WIDEST = 880; // of a single panel
  const SMALLEST = 0.8; // a chart that does not fit is made this small, and then scrolls inside its own place
  const LETTER = 6.2; // width of a letter of a title
  const UPRIGHT = 12; // width of a word that stands upright

  function natural(spec) {
    const panels = spec.hconcat || spec.vconcat || spec.concat;
    if (panels) {
      const widths = panels.map(natural);
      return spec.hconcat ? widths.reduce((sum, width) => sum + width, 0) : Math.max(...widths);
    }
    const width = (spec.spec || spec).width;
    return (typeof width === "number" ? width : 300) + AXIS;
  }

  // Calls `change` with every object inside, and what it is called there.
  function walk(node, change, name) {
    if (node && typeof node === "object") {
      change(node, name);
      Object.keys(node).filter((key) => key !== "values" && key !== "datasets").forEach((key) => walk(node[key], change, key));
    }
  }

  function wrapped(text, most) {
    const lines = [];
    [].concat(text).forEach((line) => {
      let last = null;
      String(line).split(" ").forEach((word) => {
        last = last !== null && last.length + 1 + word.length <= most ? last + " " + word : (last !== null && lines.push(last), word);
      });
      lines.push(last);
    });
    return lines;
  }

  // A row of panels that is too wide is broken into several; what a panel left to its neighbour, it then says itself.
  function broken(spec, room) {
    const widest = Math.max(...spec.hconcat.map(natural));
    spec.columns = Math.max(1, Math.min(spec.hconcat.length, Math.floor(room / (SMALLEST * widest))));
    spec.concat = spec.hconcat;
    delete spec.hconcat;
    walk(spec.concat, (node) => { if (node.labels === false) { node.labels = true; } });
    spec.concat.forEach((panel) => fit(panel, Math.min(room / spec.columns, natural(panel))));
  }

  // Words that stand upright under an axis: every second one, or third, where there is no room for all; the last one stays.
  function thinned(spec) {
    walk(spec, (node) => {
      if (node.labelAngle === -90 && Array.isArray(node.values)) {
        const step = Math.ceil(node.values.length * UPRIGHT / spec.width);
        node.values = node.values.filter((_, place, all) => (all.length - 1 - place) % step === 0);
      }
    });
  }

  function fit(spec, room) {
    if (spec.vconcat) {
      spec.vconcat.forEach((panel) => fit(panel, room));
    } else if (spec.hconcat) {
      if (natural(spec) * SMALLEST > room) {
        broken(spec, room);
      }
    } else if (spec.facet) {
      const own = spec.spec.width + 34;
      spec.columns = Math.max(1, Math.min(spec.columns || 3, Math.floor((room - 60) / Math.min(own, 200))));
      spec.spec.width = Math.max(140, Math.min(1.25 * own, Math.floor((room - 80) / spec.columns)) - 34);
    } else if (typeof spec.width !== "object") {
      spec.width = Math.max(140, Math.min(room, WIDEST) - AXIS);
      thinned(spec);
    }
  }

  function fitted(text, room, all) {
    const spec = JSON.parse(text);
    fit(spec, room);
    if (all < 560) {
      walk(spec, (node, name) => {
        if (name === "legend") {
          node.columns = 1;
          node.gradientLength = Math.min(node.gradientLength || 200, all - 90);
        } else if (name === "title" && node.text) {
          node.text = wrapped(node.text, all / LETTER);
          node.subtitle = node.subtitle && wrapped(node.subtitle, all / LETTER);
        }
      });
    }
    return spec;
  }

  async function draw(figure) {
    const place = figure.querySelector(".plot");
    const room = Math.floor(place.clientWidth);
    if (!room || place.dataset.room === String(room)) {
      return;
    }
    place.dataset.room = String(room);
    const text = figure.querySelector("script[type='application/json']").textContent;
    // `ast`: expressions are interpreted, not compiled, as the page's policy forbids making code out of text.
    const how = { ast: true, actions: false, renderer: "svg", defaultStyle: false, tooltip: { disableDefaultStyle: true } };
    // Vega names the element that it draws into a document of its own; what this one is called in words must stand.
    const inner = place.firstElementChild || place.appendChild(document.createElement("div"));
    try {
      await vegaEmbed(inner, fitted(text, room, room), how);
      const over = place.querySelector("svg").width.baseVal.value - room;
      if (over > 0) { // the words of the axes took more than was thought
        await vegaEmbed(inner, fitted(text, room - over, room), how);
      }
      const svg = place.querySelector("svg");
      svg.style.minWidth = Math.floor(SMALLEST * svg.width.baseVal.value) + "px";
      if (place.scrollWidth > place.clientWidth) {
        place.tabIndex = 0; // so that it scrolls by keys
      } else {
        place.removeAttribute("tabindex");
      }
      figure.dataset.drawn = "yes";
    } catch (error) {
      place.textContent = "This chart could not be drawn: " + error.message;
      figure.dataset.drawn = "no";
    }
  }

  function drawAll() {
    document.querySelectorAll("figure[data-chart]").forEach(draw);
  }

  let waiting = null;
  window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(drawAll, 150); });
  document.addEventListener("toggle", drawAll, true); // what was folded away had no width to be drawn at
  drawAll();
})();
