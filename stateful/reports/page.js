"use strict";
// Steps through the counterexamples. All words come from the data and are set as text, never as
// markup.
(() => {
  const films = JSON.parse(document.getElementById("films").textContent);

  const make = (tag, attributes, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== null && value !== false) element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  };

  const chips = (values) =>
    values.length === 0
      ? [make("span", { class: "none" }, "empty")]
      : values.map((value) => make("span", { class: "chip" }, String(value)));

  const requestRow = ([request, tokens, table], wrong) =>
    make("tr", { class: wrong && "wrong" },
      make("th", { scope: "row" }, `r${request}`),
      make("td", {}, tokens),
      make("td", {}, ...chips(table)));

  const requestTable = (pool, moment, last) => {
    const names = ["request", "tokens", "block table"];
    const head = make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name)));
    const rows = moment.requests.map((held) =>
      requestRow(held, last && pool.wrong.requests.includes(held[0])));
    const nothing = make("tr", {},
      make("td", { colspan: 3, class: "none" }, "no request holds anything"));
    return make("table", {},
      make("thead", {}, head), make("tbody", {}, ...(rows.length ? rows : [nothing])));
  };

  const poolNow = (pool, index, last) => {
    const moment = pool.moments[index];
    const section = make("section", { class: "pool" });
    if (pool.name !== null) section.append(make("h5", {}, pool.name));
    section.append(make("p", { class: "outcome" }, moment.note || moment.outcome));
    section.append(requestTable(pool, moment, last));
    const free = moment.free === null ? [make("span", { class: "none" }, "not seen")] : chips(moment.free);
    section.append(make("p", { class: "free" }, make("b", {}, "free list"), " ", ...free));
    section.append(make("ul", { class: "blocks" }, ...pool.blocks.map((name, i) =>
      make("li", { class: last && pool.wrong.blocks.includes(i) && "wrong" },
        make("b", {}, name), ` ${moment.cells[i]}`))));
    if (moment.changes.length) {
      section.append(make("p", { class: "changes" },
        make("b", {}, "changed"), ` ${moment.changes.join("; ")}`));
    }
    return section;
  };

  class Player {
    constructor(root, film) {
      this.root = root;
      this.film = film;
      this.last = film.commands.length - 1;
      this.strip = root.querySelector(".strip");
      this.svg = this.strip.querySelector("svg");
      this.range = root.querySelector("input");
      this.labels = root.querySelector(".labels");
      this.frame = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      this.frame.setAttribute("class", "current");
      this.frame.setAttribute("rx", "6");
      this.labels.before(this.frame);
      root.querySelector(".controls").hidden = false;
      root.classList.add("live");
      root.addEventListener("click", (event) => this.clicked(event));
      this.range.addEventListener("input", () => this.show(Number(this.range.value)));
      // The names of the rows stay in sight while the columns move.
      this.strip.addEventListener("scroll", () => {
        this.labels.style.transform = `translateX(${this.strip.scrollLeft}px)`;
        this.strip.classList.toggle("moved", this.strip.scrollLeft > 0);
      });
      this.show(this.last);
    }

    clicked(event) {
      const button = event.target.closest("[data-go]");
      const cell = event.target.closest("[data-step]");
      if (button) this.go(button.dataset.go);
      else if (cell) this.show(Number(cell.dataset.step));
    }

    go(where) {
      const index = { first: 0, back: this.index - 1, forth: this.index + 1, last: this.last }[where];
      this.show(Math.min(Math.max(index, 0), this.last));
    }

    show(index) {
      this.index = index;
      const last = index === this.last;
      this.root.dataset.at = index;
      this.range.value = index;
      this.range.setAttribute("aria-valuetext", `step ${index}: ${this.film.commands[index]}`);
      for (const button of this.root.querySelectorAll("[data-go]")) {
        const back = button.dataset.go === "first" || button.dataset.go === "back";
        button.setAttribute("aria-disabled", String(back ? index === 0 : last));
      }
      const heading = make("h4", {}, `step ${index} of ${this.last}: `,
        make("code", {}, this.film.commands[index]));
      const pools = make("div", { class: "pools" },
        ...this.film.pools.map((pool) => poolNow(pool, index, last)));
      this.root.querySelector(".now").replaceChildren(heading, pools);
      this.frameColumn(index);
    }

    frameColumn(index) {
      const band = this.svg.querySelector(`.band[data-step="${index}"]`);
      for (const name of ["x", "y", "width", "height"]) {
        this.frame.setAttribute(name, band.getAttribute(name));
      }
      const left = Number(band.getAttribute("x"));
      const right = left + Number(band.getAttribute("width"));
      const hidden = Number(this.labels.querySelector(".under").getAttribute("width")) + 3;
      if (left - hidden < this.strip.scrollLeft) this.scrollTo(left - hidden);
      const room = this.strip.clientWidth;
      if (right + 16 > this.strip.scrollLeft + room) {
        // On to where a column begins: none is to be half hidden below the names of the rows.
        const least = Math.min(right + 16 - room, left - hidden);
        const starts = [...this.svg.querySelectorAll(".band")]
          .map((other) => Number(other.getAttribute("x")) - hidden);
        this.scrollTo(Math.min(...starts.filter((start) => start >= least)));
      }
    }

    // Pads the picture where it would end before it is scrolled as far as that.
    scrollTo(x) {
      const { width, height } = this.svg.viewBox.baseVal;
      this.full = this.full || width;
      const wide = Math.max(this.full, x + this.strip.clientWidth);
      this.svg.setAttribute("width", wide);
      this.svg.setAttribute("viewBox", `0 0 ${wide} ${height}`);
      this.strip.scrollLeft = x;
    }
  }

  const players = [...document.querySelectorAll(".player")]
    .map((root) => new Player(root, films[Number(root.dataset.film)]));

  // Keys go to the counterexample that has the focus, or else to the one in the middle of the view.
  const addressed = (element) => {
    const own = players.find((player) => player.root.contains(element));
    if (own || element !== document.body) return own;
    const middle = window.innerHeight / 2;
    return players.find((player) => {
      const box = player.root.getBoundingClientRect();
      return box.top <= middle && box.bottom >= middle;
    });
  };

  const KEYS = { ArrowLeft: "back", ArrowRight: "forth", Home: "first", End: "last" };
  document.addEventListener("keydown", (event) => {
    const where = KEYS[event.key];
    if (!where || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const player = addressed(event.target);
    if (!player) return;
    event.preventDefault();
    player.go(where);
  });
})();
