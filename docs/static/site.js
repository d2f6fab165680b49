"use strict";
document.addEventListener("DOMContentLoaded", () => {
  nameFolds();
  searchFacts();
  indentLines();
  labelCells();
  askPredictions();
  pickSilhouettes();
});

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

// Of a line that is too long, what is wrapped is indented further than the line itself.
function indentLines() {
  for (const pre of document.querySelectorAll(".bd-article pre")) {
    const lines = pre.innerHTML.replace(/\n$/, "").split("\n");  // Pygments closes its tags at the end of each
    pre.innerHTML = lines.map(line => {
      const indent = line.replace(/<[^>]*>/g, "").match(/^[-+ ]*/)[0].length;
      return `<span class="line" style="--indent:${indent}ch">${line}\n</span>`;
    }).join("");
  }
}

// On a phone a wide table is a list of rows, in which each cell has its column's name before it.
function labelCells() {
  for (const table of document.querySelectorAll(".bd-article table:not(#facts)")) {
    const [head, ...rows] = table.rows;
    if (!head || head.cells.length < 3) continue;
    table.classList.add("listed");
    for (const row of rows) {
      for (const [at, cell] of [...row.cells].entries()) {
        cell.dataset.column = head.cells[at]?.textContent ?? "";
        cell.classList.toggle("empty", !cell.textContent.trim());
      }
    }
  }
}

// A prediction's options can be chosen. What follows its answer waits for that, or until the answer is unfolded.
function askPredictions() {
  const answers = [...document.querySelectorAll(".answer")];
  for (const box of document.querySelectorAll(".prediction")) {
    const answer = answers.find(each => each.dataset.question === box.dataset.question);
    const fold = answer?.closest("details");
    if (!fold) continue;
    const { answer: correct, why } = answer.dataset;
    const waiting = location.hash ? [] : following(fold);
    const verdict = document.createElement("p");
    verdict.setAttribute("role", "status");
    const options = [...box.querySelectorAll(":scope > div")].map(div => {
      const text = div.textContent.replace("\u2610", "").trim();
      const option = Object.assign(document.createElement("button"), { type: "button", textContent: text });
      div.replaceWith(option);
      return option;
    });
    const show = () => {
      for (const part of waiting) part.hidden = false;
      note.remove();
    };
    const note = document.createElement("p");
    note.className = "waits";
    note.textContent = "The text goes on once you have chosen, or unfolded the answer.";
    if (waiting.length) waiting[0].before(note);
    for (const part of waiting) part.hidden = true;
    box.append(verdict);
    fold.addEventListener("toggle", show);
    for (const option of options) {
      option.onclick = () => {
        if (box.classList.contains("chosen")) return;
        box.classList.add("chosen");
        for (const each of options) {
          each.setAttribute("aria-disabled", "true");
          if (each.textContent === correct) each.classList.add("correct");
          else if (each === option) each.classList.add("wrong");
        }
        verdict.append(...coded(option.textContent === correct ? "That's it." : `No: ${correct}. ${why ?? ""}`));
        fold.open = true;
        show();
      };
    }
  }
}

// Text in which code stands between backquotes.
function coded(text) {
  return text.split("`").map((part, k) => k % 2 ? Object.assign(document.createElement("code"), { textContent: part }) : part);
}

// What follows an answer up to the next question, answer or section.
function following(fold) {
  let part = fold;
  while (!part.parentElement.matches("section, .loop, body")) part = part.parentElement;
  const found = [];
  while ((part = part.nextElementSibling) && !part.matches("section, :has(.prediction, .answer)")) found.push(part);
  return found;
}

// Below the silhouettes stands the loop that was picked, and it runs.
function pickSilhouettes() {
  const buttons = [...document.querySelectorAll(".silhouettes button")];
  const loops = [...document.querySelectorAll(".loop")];
  const pick = (at, play) => {
    buttons.forEach((button, k) => button.setAttribute("aria-pressed", k === at));
    loops.forEach((loop, k) => { loop.hidden = k !== at; });
    const frame = loops[at].querySelector("iframe").contentWindow;
    frame.dispatchEvent(new Event("resize"));  // it measures itself, which it couldn't while it was hidden
    const position = frame.document.getElementById("position");
    if (play) frame.document.getElementById("play").click();
    else if (position) {
      position.value = Math.round(position.max / 2);  // at first, what the ledger tells in mid-run
      position.dispatchEvent(new Event("input"));
    }
  };
  buttons.forEach((button, at) => { button.onclick = () => pick(at, true); });
  if (!buttons.length) return;
  pick(3, false);
  addEventListener("load", () => {  // now the frames are there, too
    if (loops[3].hidden === false) pick(3, false);
  });
}
