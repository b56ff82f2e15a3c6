// What on this page is too faint: [what, its colours, their contrast], for text (least 4.5) and for marks of charts (least 3).
([least, graphics]) => {
  const style = document.createElement("style");
  style.textContent = "* { pointer-events: auto !important; }"; // so that everything is found under a point
  document.head.append(style);
  const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });

  function parsed(colour) {
    paint.clearRect(0, 0, 1, 1);
    paint.fillStyle = "#000";
    paint.fillStyle = colour;
    paint.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = paint.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  }
  const over = (top, ground) => [0, 1, 2].map((i) => top[3] * top[i] + (1 - top[3]) * ground[i]);
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, other) => {
    const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  function opacity(node) {
    let product = 1;
    for (let at = node; at instanceof Element; at = at.parentElement) {
      product *= Number(getComputedStyle(at).opacity);
    }
    return product;
  }
  function painted(node, kind) {
    const style = getComputedStyle(node);
    if (style[kind] === "none") {
      return [0, 0, 0, 0];
    }
    const colour = parsed(style[kind]);
    return [...colour.slice(0, 3), colour[3] * Number(style[kind + "Opacity"]) * opacity(node)];
  }
  // The colour behind a point: every background and every filled shape under it, from below.
  function ground(x, y, self) {
    const below = document.elementsFromPoint(x, y).filter((node) => node !== self && !self.contains(node) && node.tagName !== "text");
    let colour = [255, 255, 255];
    for (const node of below.reverse()) {
      const svg = node instanceof SVGGeometryElement;
      const top = svg ? painted(node, "fill") : parsed(getComputedStyle(node).backgroundColor);
      colour = over(svg || node instanceof SVGElement && !(node instanceof SVGSVGElement) ? (svg ? top : [0, 0, 0, 0]) : top, colour);
    }
    return colour;
  }
  const found = [];
  function judge(what, colour, x, y, node, needed) {
    const behind = ground(x, y, node);
    const ratio = contrast(over(colour, behind), behind);
    if (ratio < needed) {
      found.push([what, colour.map((part) => Math.round(part * 100) / 100).join(" "), behind.map(Math.round).join(" "), Math.round(ratio * 100) / 100]);
    }
  }
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = texts.nextNode(); node; node = texts.nextNode()) {
    const owner = node.parentElement;
    if (!node.data.trim() || owner.closest(".heads") || ["SCRIPT", "STYLE", "NOSCRIPT"].includes(owner.tagName) || !owner.checkVisibility({ visibilityProperty: true, opacityProperty: true })) {
      continue;
    }
    owner.scrollIntoView({ block: "center", inline: "center" });
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    const x = box.left + box.width / 2, y = box.top + box.height / 2;
    if (!box.width || x < 0 || x > innerWidth || y < 0 || y > innerHeight) {
      continue;
    }
    const svg = owner.closest("svg");
    const colour = svg ? painted(owner, "fill") : parsed(getComputedStyle(owner).color);
    judge("text: " + node.data.trim().slice(0, 40), svg ? colour : [...colour.slice(0, 3), colour[3] * opacity(owner)], x, y, owner, least);
  }
  const faint = new Set();
  for (const node of document.querySelectorAll(".plot .mark-line path, .plot .mark-symbol path, .plot .mark-rule line, .plot .mark-rect path")) {
    if (node.closest(".role-axis, .role-axis-grid, .role-legend-gradient") || node.closest("[class*='role-axis']")) {
      continue;
    }
    const kinds = ["stroke", "fill"].map((kind) => painted(node, kind)).filter((colour) => colour[3] > 0);
    if (!kinds.length) {
      continue; // drawn for its tooltip only
    }
    const behind = parsed(getComputedStyle(document.body).backgroundColor).slice(0, 3);
    const best = Math.max(...kinds.map((colour) => contrast(over(colour, behind), behind)));
    if (best < graphics) {
      faint.add(node.closest("g").getAttribute("class").split(" ").slice(0, 3).join(" ") + ": " + kinds.map((colour) => colour.map((part) => Math.round(part * 100) / 100).join(" ")).join(" / ") + " = " + Math.round(best * 100) / 100);
    }
  }
  style.remove();
  return { texts: found, marks: [...faint] };
}
