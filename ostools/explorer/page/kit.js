"use strict";
// What every part of the page uses. Every text goes into the page as text, none as HTML.
const kit = (function () {
  const get = (id) => document.getElementById(id);

  function put(parent, name, text) {
    const made = document.createElement(name);
    made.textContent = text;
    parent.appendChild(made);
    return made;
  }

  function button(parent, text, pressed) {
    const made = put(parent, "button", text);
    made.type = "button";
    made.addEventListener("click", pressed);
    return made;
  }

  function options(select, names, words) {
    names.forEach((name, place) => { put(select, "option", words[place]).value = name; });
  }

  function post(asked, signal) {
    const sent = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(asked), signal };
    return fetch("run", sent);
  }

  function say(text) { get("said").textContent = text; }

  function written(value) { return value === null ? "not finite" : Number(value.toPrecision(5)).toString(); }

  function limited(one) { return written(one.value) + (one.interval ? " [" + one.interval.map(written).join(", ") + "]" : ""); }

  function numbers(place, list, kind) {
    const table = put(place, "dl", "");
    list.forEach((one) => {
      put(table, "dt", one.name);
      put(table, "dd", limited(one) + (kind ? " (" + kind + ")" : ""));
    });
  }

  return { get, put, button, options, post, say, written, numbers };
})();
