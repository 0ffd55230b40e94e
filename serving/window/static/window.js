// Comforts only: the page works without them.
"use strict";
const form = document.getElementById("ask");

// A short address: fields that are empty are not sent. The page itself stays as it is: the answer may come in another tab.
form.addEventListener("formdata", ({ formData }) => {
  for (const [name, value] of [...formData]) if (!value) formData.delete(name);
});

// "/" goes to the user, as in many tools, unless something is being typed.
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)) return;
  event.preventDefault();
  document.getElementById("user").focus();
});

const wrong = document.querySelector("[aria-invalid]");
if (wrong) {
  wrong.closest("details")?.setAttribute("open", "");
  wrong.focus();
  // Again when all is there: then the browser goes to the place that the address names, which is the answer's.
  addEventListener("load", () => requestAnimationFrame(() => wrong.focus()));
}
