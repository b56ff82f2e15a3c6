"use strict";
// Draws each figure of the page at the width it has, and again when that changes.
(function () {
  function fitted(text, room) {
    const spec = JSON.parse(text);
    const narrow = room < 560;
    if (narrow) {
      spec.config.legend.columns = 1;
    }
    if (spec.vconcat) {
      spec.vconcat.forEach((panel) => { panel.width = Math.max(140, room - 85); });
    } else if (spec.facet) {
      spec.columns = Math.max(1, Math.min(spec.columns || 3, Math.floor((room - 60) / 200)));
      spec.spec.width = Math.max(140, Math.floor((room - 80) / spec.columns) - 34);
    } else {
      spec.width = Math.max(140, room - 110);
    }
    return spec;
  }

  function draw(figure) {
    const place = figure.querySelector(".plot");
    const room = Math.floor(place.clientWidth);
    if (!room || place.dataset.room === String(room)) {
      return;
    }
    place.dataset.room = String(room);
    const spec = fitted(figure.querySelector("script[type='application/json']").textContent, room);
    // `ast`: expressions are interpreted, not compiled, as the page's policy forbids making code out of text.
    vegaEmbed(place, spec, { ast: true, actions: false, renderer: "svg", defaultStyle: false, tooltip: { disableDefaultStyle: true } })
      .then(() => { figure.dataset.drawn = "yes"; })
      .catch((error) => { place.textContent = "This chart could not be drawn: " + error.message; });
  }

  function drawAll() {
    document.querySelectorAll("figure[data-chart]").forEach(draw);
  }

  let waiting = null;
  window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(drawAll, 150); });
  drawAll();
})();
