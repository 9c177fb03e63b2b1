"use strict";
// Only ever sets text: what a host said is never parsed as markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const letters = ["U", "T", "N", "?", "D", "W", ""];
  const keys = ["unreachable", "timed_out", "not_run", "incomplete", "drift", "waived", "in_sync"];
  const names = Object.keys(data.hosts).sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const text = (number) => (number < 0 ? "-" : data.texts[number]);
  const make = (tag, options = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(options)) {
      if (name === "text") node.textContent = value;
      else node.setAttribute(name, value);
    }
    node.append(...children);
    return node;
  };

  const spark = (values, label) => {
    const known = values.filter((value) => value !== null);
    const low = Math.min(...known), span = Math.max(...known) - low || 1;
    const step = 200 / Math.max(values.length - 1, 1);
    const points = values.map((value, i) => value === null ? "" : `${i * step},${38 - 36 * (value - low) / span}`);
    const space = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(space, "svg");
    const line = document.createElementNS(space, "polyline");
    for (const [name, value] of [["viewBox", "0 0 200 40"], ["width", "200"], ["role", "img"], ["aria-label", label]])
      svg.setAttribute(name, value);
    line.setAttribute("class", "mid");
    line.setAttribute("points", points.join(" "));
    svg.append(line);
    return svg;
  };

  const finding = ([body, label, follows]) => {
    const [check, subject, aspect, state, severity, want, have, source, why, fix] = data.bodies[body].map(text);
    const diff = make("ul", { class: "diff mono" },
      make("li", { class: "want", text: `want  ${want}` }), make("li", { class: "have", text: `have  ${have}` }));
    return make("article", { class: `s-${severity}` },
      make("h4", { class: "mono", text: `${check} ${subject}` }),
      make("p", {}, make("span", { class: `tag ${severity}`, text: `${severity} ${state}` }),
        make("span", { class: "tag", text: aspect }), make("span", { class: "tag", text: text(label) }),
        ...(follows ? [make("span", { class: "tag", text: "follows from another" })] : [])),
      diff, make("p", { text: why }), make("p", { class: "dim", text: `read from ${source}` }),
      make("p", {}, make("b", { text: "do: " }), fix));
  };

  const show = (name, focus) => {
    const view = document.getElementById("host-view");
    const host = data.hosts[name];
    if (!host) {
      view.replaceChildren(make("p", { text: name ? `No host ${name} in this run.` : "" }));
      return;
    }
    const kind = data.classes[host.c];
    const parts = [make("h3", { tabindex: "-1", text: `${name}: ${kind}, ${host.p} checks passed` })];
    const nights = make("p", {}, "last nights, the last is this one: ");
    for (const night of host.n)
      nights.append(night < 0 ? make("span", { class: "night dim", text: "-" })
        : make("span", { class: `night k-${keys[night]}`, title: data.classes[night] },
          make("span", { class: "sr", text: data.classes[night] + " " }),
          make("span", { "aria-hidden": "true", text: letters[night] || "\u2713" })));
    parts.push(nights, ...host.f.map(finding));
    if (host.x.length) parts.push(make("p", { text: `fixed: ${host.x.map(text).join(", ")}` }));
    if (host.u.length) parts.push(make("p", { text: `was there, not judged this time: ${host.u.map(text).join(", ")}` }));
    if (host.b) {
      const body = make("tbody");
      for (const [run, value, bar] of host.b)
        body.append(make("tr", {}, make("th", { scope: "row", text: text(run) }),
          make("td", { text: value.toFixed(1) }), make("td", { text: bar === null ? "-" : bar.toFixed(1) })));
      const head = make("tr", {});
      for (const title of ["run", "GB/s", "bar"]) head.append(make("th", { scope: "col", text: title }));
      parts.push(make("div", { class: "scroll" },
        make("table", {}, make("caption", { text: "bus bandwidth" }), make("thead", {}, head), body)));
      if (host.t.filter((value) => value !== null).length > 1)
        parts.push(make("p", {}, `${data.lead}, night by night: `, spark(host.t, `${data.lead}: ${host.t.join(", ")} GB/s`)));
    }
    view.replaceChildren(...parts);
    document.getElementById("lookup-name").value = name;
    if (focus) parts[0].focus();
  };

  const map = document.getElementById("map");
  names.forEach((name, i) => {
    const kind = data.hosts[name].c;
    const link = make("a", { href: `#host=${encodeURIComponent(name)}`, class: `k-${keys[kind]}`, title: `${name}: ${data.classes[kind]}`,
      "aria-label": `${name}: ${data.classes[kind]}`, tabindex: i ? "-1" : "0", text: letters[kind] });
    map.append(make("li", {}, link));
    document.getElementById("names").append(make("option", { value: name }));
  });
  // One stop for the tab key, arrows within.
  map.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 }[event.key];
    const links = [...map.querySelectorAll("a")];
    const next = event.key === "Home" ? links[0] : event.key === "End" ? links.at(-1)
      : step && links[links.indexOf(document.activeElement) + step];
    if (!next) return;
    event.preventDefault();
    document.activeElement.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  });

  const follow = (focus) => {
    const wanted = /^#host=(.*)$/.exec(location.hash);
    if (!wanted) return;
    let name = wanted[1];
    try { name = decodeURIComponent(name); } catch { /* shown as it stands */ }
    show(name, focus);
    document.getElementById("hosts").scrollIntoView();
  };
  window.addEventListener("hashchange", () => follow(true));
  document.getElementById("lookup").addEventListener("submit", (event) => {
    event.preventDefault();
    show(document.getElementById("lookup-name").value.trim(), true);
  });
  for (const button of document.querySelectorAll("button.copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const code = button.previousElementSibling;
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(code);
        button.textContent = "selected";
      }
    });
  }
  document.documentElement.classList.add("script");
  follow(false);
})();
