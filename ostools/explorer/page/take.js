"use strict";
// What can be taken away: the code on the clipboard, the result as a file.
const take = (function () {
  const { get, post, say } = kit;

  async function copy() {
    try {
      await navigator.clipboard.writeText(get("code").textContent);
      say("The code is on the clipboard.");
    } catch (error) {
      getSelection().selectAllChildren(get("code"));
      say("The code is selected. Here the browser does not let a page use the clipboard, so copy it with the keyboard.");
    }
  }

  async function save(asked) {
    const ending = get("ending").value;
    const found = await post("save", { ...asked, ending });
    if (!found.ok) { say((await found.json()).error); return; }
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await found.blob());
    const isPair = found.headers.get("Content-Type") === "application/zip"; // two files, one a side
    link.download = "ostools-" + asked.view + (isPair ? "-" + ending + ".zip" : "." + ending);
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  return { copy, save };
})();
