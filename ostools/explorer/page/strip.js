"use strict";
// The tokens as a strip, one or two of them, and what is said of the token that the pointer or the keys are at.
const strip = (function () {
  const { get, put, numbers } = kit;
  const PLACES = ["tokens", "second"];
  const NAMES = ["first", "second"]; // in a sentence
  let shown = null; // the answer
  let chosen = null; // [side, position]

  const sides = () => [shown.tokens, shown.second];

  function show(answer) {
    shown = answer;
    const active = document.activeElement && document.activeElement.dataset; // keys keep their place when numbers arrive
    const held = active && active.position !== undefined ? [active.side, active.position] : null;
    const all = sides().filter((side) => side !== null).flat();
    const most = Math.max(...all.map((one) => Math.abs(one.value || 0)), Number.MIN_VALUE);
    PLACES.forEach((place, side) => {
      get(place).textContent = "";
      (sides()[side] || []).forEach((one) => token(get(place), one, side, most));
    });
    named(answer.names);
    if (held) { focused(...held); }
    pressedNow();
    if (answer.tokens.length) { tell(...at()); } else { get("token").textContent = ""; }
  }

  function named(names) {
    NAMES.forEach((name, side) => {
      get(name + "-side").hidden = !names.length || !sides()[side].length;
      get(name + "-side").textContent = names[side] || "";
    });
  }

  function token(place, one, side, most) {
    const button = put(place, "button", one.token);
    button.type = "button";
    button.dataset.position = one.position;
    button.dataset.side = side;
    button.style.setProperty("--share", Math.abs(one.value || 0) / most);
    button.classList.toggle("less", one.value < 0);
    button.addEventListener("mouseenter", () => tell(side, one.position));
    button.addEventListener("focus", () => tell(side, one.position));
    button.addEventListener("click", () => { chosen = [side, one.position]; pressedNow(); tell(side, one.position); });
  }

  function button(side, position) { return document.querySelector(`.tokens button[data-side="${side}"][data-position="${position}"]`); }

  function focused(side, position) {
    const found = button(side, position);
    if (found) { found.focus(); }
  }

  // The side and the position that are told of when nothing is pointed at.
  function at() {
    const there = chosen !== null && (sides()[chosen[0]] || []).some((one) => one.position === chosen[1]);
    return there ? chosen : [0, 0];
  }

  function pressedNow() {
    document.querySelectorAll(".tokens button").forEach((one) => {
      const now = chosen !== null && Number(one.dataset.side) === chosen[0] && Number(one.dataset.position) === chosen[1];
      one.setAttribute("aria-pressed", String(now));
    });
  }

  function tell(side, position) {
    const one = shown && (sides()[side] || []).find((each) => each.position === position);
    if (!one) { return; }
    const place = get("token");
    place.textContent = "";
    const of = shown.second ? " of the " + NAMES[side] : "";
    put(put(place, "h2", "Token " + position + of + ": "), "bdi", one.token);
    numbers(place, one.numbers, shown.kind);
  }

  function clear() {
    shown = null;
    [...PLACES, "token"].forEach((place) => { get(place).textContent = ""; });
    NAMES.forEach((name) => { get(name + "-side").hidden = true; });
  }

  return { show, clear };
})();
