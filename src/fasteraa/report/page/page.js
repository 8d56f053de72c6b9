"use strict";
(() => {
  const live = document.body.hasAttribute("data-live");
  const byId = (id) => document.getElementById(id);
  const kept = (store) => ({
    get: (key) => { try { return store().getItem(key); } catch { return null; } },
    set: (key, value) => { try { store().setItem(key, value); } catch { /* a file may have no storage */ } },
  });
  const forever = kept(() => localStorage), meanwhile = kept(() => sessionStorage);

  // --- light and dark
  const root = document.documentElement, theme = byId("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const now = () => root.dataset.theme || (system.matches ? "dark" : "light");
  const other = () => (now() === "dark" ? "light" : "dark");
  const label = () => { theme.textContent = `Switch to ${other()}`; };
  const before = forever.get("fasteraa-theme");
  if (before === "dark" || before === "light") root.dataset.theme = before;
  theme.addEventListener("click", () => { root.dataset.theme = other(); forever.set("fasteraa-theme", now()); label(); });
  system.addEventListener("change", label);
  label();

  // --- the heat map
  const controls = byId("heat-controls");
  if (controls) {
    const data = JSON.parse(byId("heat-data").textContent);
    const cells = [...document.querySelectorAll("#heat-map td")], width = data.columns.length;
    const side = () => (controls.elements.side ? controls.elements.side.value : "after");
    const say = (cell) => {
      const at = Number(cell.dataset.at), [sub, stage] = data.columns[at % width];
      const words = data.words[side()][at];
      const op = data.ops[Math.floor(at / width)];
      byId("heat-words").textContent = `Sub-policy ${sub}, stage ${stage}, ${side()}: ` + (words || `${op} is not in this stage`);
    };
    const paint = () => {
      const values = data.values[side()][controls.elements.measure.value];
      cells.forEach((cell, at) => {
        const value = values[at];
        cell.setAttribute("style", `--v:${value ?? 0}`);
        cell.textContent = value === null ? "" : Math.round(value * 100);
      });
    };
    for (const name of live ? ["side", "measure"] : []) {  // as it was before the page was loaded again
      const value = meanwhile.get(`fasteraa-${name}`), group = controls.elements[name];
      if (group && [...group].some((input) => input.value === value)) group.value = value;
    }
    paint();
    controls.addEventListener("change", (event) => {
      meanwhile.set(`fasteraa-${event.target.name}`, event.target.value);
      paint();
    });
    const go = (from, to) => { from.tabIndex = -1; to.tabIndex = 0; to.focus(); };
    cells.forEach((cell, at) => {
      cell.addEventListener("mouseenter", () => say(cell));
      cell.addEventListener("focus", () => say(cell));
      cell.addEventListener("keydown", (event) => {
        const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -width, ArrowDown: width }[event.key];
        const inRow = Math.abs(step) !== 1 || Math.floor((at + step) / width) === Math.floor(at / width);
        if (step && inRow && cells[at + step]) { event.preventDefault(); go(cell, cells[at + step]); }
      });
    });
  }

  // --- one library at a time
  for (const list of document.querySelectorAll("[role=tablist]")) {
    const tabs = [...list.querySelectorAll("[role=tab]")];
    const select = (chosen, focus) => {
      for (const tab of tabs) {
        const here = tab === chosen;
        tab.setAttribute("aria-selected", here);
        tab.tabIndex = here ? 0 : -1;
        byId(tab.getAttribute("aria-controls")).hidden = !here;
      }
      if (focus) { chosen.focus(); forever.set("fasteraa-tab", chosen.textContent); }
    };
    tabs.forEach((tab, at) => {
      tab.addEventListener("click", () => select(tab, true));
      tab.addEventListener("keydown", (event) => {
        const last = tabs.length - 1;
        const to = { ArrowLeft: at ? at - 1 : last, ArrowRight: at < last ? at + 1 : 0, Home: 0, End: last }[event.key];
        if (to !== undefined) { event.preventDefault(); select(tabs[to], true); }
      });
    });
    list.hidden = false;
    list.parentElement.classList.add("live");
    select(tabs.find((tab) => tab.textContent === forever.get("fasteraa-tab")) || tabs[0], false);
  }

  // --- other draws of the same images
  const again = byId("again");
  if (again) {
    const known = JSON.parse(byId("draws").textContent), tiles = [...document.querySelectorAll(".drawn")];
    const columns = known.draws[0].length, rows = tiles.length / columns;
    let first = 0;
    again.addEventListener("click", () => {
      first = (first + rows) % known.draws.length;
      tiles.forEach((tile, at) => {
        const row = (first + Math.floor(at / columns)) % known.draws.length, column = at % columns;
        const words = known.draws[row][column], picture = tile.querySelector("svg");
        const left = column * (known.width + known.gap), top = (row + 1) * (known.height + known.gap);
        picture.setAttribute("viewBox", `${left} ${top} ${known.width} ${known.height}`);
        const shown = words.length ? words : ["unchanged"];
        picture.setAttribute("aria-label", `image ${column + 1}: ${shown.join(", ")}`);
        tile.querySelector("p").replaceChildren(...shown.flatMap((each, n) => (n ? [document.createElement("br"), each] : [each])));
      });
      byId("drawn").textContent = `Draws ${first + 1} to ${first + rows} of ${known.draws.length}`;
    });
    again.hidden = known.draws.length <= rows;
  }

  // --- code to take along
  for (const box of document.querySelectorAll(".code")) {
    const button = document.createElement("button"), code = box.querySelector("code");
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code);
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    box.append(button);
  }

  // --- a run that has not ended
  if (live) {
    let version = null, failed = 0;
    const look = async () => {
      try {
        const status = await (await fetch("status.json", { cache: "no-store" })).json();
        failed = 0;
        if (version !== null && status.version !== version) { location.reload(); return; }
        version = status.version;
      } catch {
        failed += 1;
        if (failed === 3) byId("state").textContent = "The server no longer answers: the page shows the last known state.";
      }
      setTimeout(look, failed ? 5000 : 1500);
    };
    look();
  }
})();
