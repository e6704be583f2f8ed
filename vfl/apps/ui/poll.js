// Keep the numbers of runs at work up to date. Values are set as text, never as markup.
"use strict";
const shown = {
  said: (node, now) => { node.textContent = now.said; },
  rounds: (node, now) => { node.value = now.rounds; },
  epsilon: (node, now) => {
    node.textContent = now.epsilon === null ? now.why : `${now.epsilon.toPrecision(4)} of ${now.cap.toPrecision(4)}`;
  },
};
const places = new Map();
for (const node of document.querySelectorAll("[data-live]")) {
  places.set(node.dataset.live, [...(places.get(node.dataset.live) ?? []), node]);
}
async function follow(place, nodes) {
  const before = nodes.find((node) => node.dataset.state)?.dataset.state;
  for (;;) {
    await new Promise((then) => setTimeout(then, document.hidden ? 5000 : 1000));
    let now;
    try {
      now = await (await fetch(place, { cache: "no-store" })).json();
    } catch {
      continue;
    }
    if (now.state !== before) {
      location.reload();
      return;
    }
    for (const node of nodes) shown[node.dataset.show](node, now);
  }
}
for (const [place, nodes] of places) follow(place, nodes);
