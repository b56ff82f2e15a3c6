"use strict";
// The tokens as a strip, and what is said of the token that the pointer or the keys are at.
const strip = (function () {
  const { get, put, numbers } = kit;
  let shown = null; // the answer
  let chosen = null; // its position

  function show(answer) {
    shown = answer;
    const active = document.activeElement && document.activeElement.dataset; // keys keep their place when numbers arrive
    const held = active && active.position !== undefined ? active.position : null;
    const most = Math.max(...shown.tokens.map((one) => Math.abs(one.value || 0)), Number.MIN_VALUE);
    get("tokens").textContent = "";
    shown.tokens.forEach((one) => token(one, most));
    if (held !== null) { focused(held); }
    pressedNow();
    if (answer.tokens.length) { tell(at()); } else { get("token").textContent = ""; }
  }

  function token(one, most) {
    const button = put(get("tokens"), "button", one.token);
    button.type = "button";
    button.dataset.position = one.position;
    button.style.setProperty("--share", Math.abs(one.value || 0) / most);
    button.classList.toggle("less", one.value < 0);
    button.addEventListener("mouseenter", () => tell(one.position));
    button.addEventListener("focus", () => tell(one.position));
    button.addEventListener("click", () => { chosen = one.position; pressedNow(); tell(one.position); });
  }

  function focused(position) {
    const found = document.querySelector(`.tokens button[data-position="${position}"]`);
    if (found) { found.focus(); }
  }

  // The position that is told of when nothing is pointed at.
  function at() { return shown.tokens.some((one) => one.position === chosen) ? chosen : 0; }

  function pressedNow() {
    document.querySelectorAll(".tokens button").forEach((one) => {
      one.setAttribute("aria-pressed", String(Number(one.dataset.position) === chosen));
    });
  }

  function tell(position) {
    const one = shown && shown.tokens.find((each) => each.position === position);
    if (!one) { return; }
    const place = get("token");
    place.textContent = "";
    put(put(place, "h2", "Token " + position + ": "), "bdi", one.token);
    numbers(place, one.numbers, shown.kind);
  }

  function clear() {
    shown = null;
    ["tokens", "token"].forEach((place) => { get(place).textContent = ""; });
  }

  return { show, clear };
})();
