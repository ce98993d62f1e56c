// The theme's script adds unnamed landmarks to code and makes tables scroll. Name the former, and let keys scroll the latter.
function complete() {
  document.querySelectorAll(".md-code__nav").forEach((nav, index) => nav.setAttribute("aria-label", `Code ${index + 1}`));
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap")) table.tabIndex = 0;
}
new MutationObserver(complete).observe(document.body, { childList: true, subtree: true });
complete();
