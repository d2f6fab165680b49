"use strict";
document.addEventListener("DOMContentLoaded", () => {
  nameFolds();
  searchFacts();
  stepInTheTheme();
});

// The pages in frames, to step through a loop, are as light or as dark as the site.
function stepInTheTheme() {
  const frames = [...document.querySelectorAll("iframe.stepper")];
  const follow = () => {
    for (const frame of frames) {
      const page = frame.contentDocument?.documentElement;
      if (page) page.style.colorScheme = document.documentElement.dataset.theme;
    }
  };
  for (const frame of frames) frame.addEventListener("load", follow);
  new MutationObserver(follow).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  follow();
}

// The theme's arrows beside entries with pages below them have no name for a screen reader.
function nameFolds() {
  for (const arrow of document.querySelectorAll(".bd-sidebar summary")) {
    const entry = arrow.closest("li")?.querySelector("a");
    if (entry && !arrow.textContent.trim()) arrow.setAttribute("aria-label", `Pages below ${entry.textContent.trim()}`);
  }
}

// Shows the rows of the table of facts that hold all the words of the search.
function searchFacts() {
  const search = document.getElementById("search");
  const rows = [...document.querySelectorAll("#facts tbody tr")];
  if (!search || !rows.length) return;
  const texts = rows.map(row => `${row.id} ${row.textContent}`.toLowerCase());
  const show = () => {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    rows.forEach((row, at) => { row.hidden = !wanted.every(word => texts[at].includes(word)); });
    document.getElementById("found").textContent = `${rows.filter(row => !row.hidden).length} of ${rows.length}`;
  };
  search.addEventListener("input", show);
  show();
}
