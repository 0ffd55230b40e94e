// Comforts only: the page works without them.
"use strict";
const form = document.getElementById("ask");

// A short address: fields that are empty are not sent.
form.addEventListener("submit", () => {
  for (const field of form.elements) if (field.name && !field.value) field.disabled = true;
  document.body.setAttribute("aria-busy", "true");
});

// Back from the next page, which some browsers show as it was left.
addEventListener("pageshow", () => {
  for (const field of form.elements) field.disabled = false;
  document.body.removeAttribute("aria-busy");
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
