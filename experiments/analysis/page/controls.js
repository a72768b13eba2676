'use strict';

// Controls of the page, and what happens when they change.

/** Show an example: a stored one, or what the model of the page has read. */
function showExample(example) {
  page.example = example;
  const kinds = ['encoder', 'decoder', 'cross'].filter((kind) => example.maps[kind]);
  if (!kinds.includes(page.kind)) [page.kind] = kinds;
  page.pinned.clear();
  const { stacks, name, translations, chosen = 0 } = example;
  const answers = translations.slice(chosen, chosen + 1).map(({ text }) => text);
  const parts = stacks.encoder || !answers.length ? [name, ...answers] : answers;
  const texts = parts.map((text) => element('bdi', {}, text));
  if (parts.length > 1) texts.splice(1, 0, element('span', { class: 'quiet' }, ' → '));
  byId('reading').replaceChildren(...texts);
  choices('kinds', kinds, (kind) => kind, showKind, page.kind);
  showKind(page.kind);
}

/** Show a stored example. */
function showStored(number) {
  const stored = page.data.examples[number];
  page.stored = number;
  byId('example').value = number;
  byId('status').textContent = exampleNote(stored);
  for (const map of Object.values(stored.maps)) {
    if (typeof map.weights === 'string') map.weights = decodeWeights(map.weights);
  }
  if (!page.model) return showExample(stored);
  const { encoder, decoder } = stored.stacks;
  const pass = passOf(encoder ?? decoder, encoder ? stored.translations[0]?.ids : decoder.ids);
  const maps = {}; // exact weights, with the labels of the example
  for (const [kind, map] of Object.entries(pass.maps)) {
    const { queries, keys } = stored.maps[kind];
    maps[kind] = { ...map, queries, keys };
  }
  const { attention, logits, logitsShape } = pass;
  showExample({ ...stored, maps, attention, logits, logitsShape });
}

/** Show another kind of attention: other tokens, layers and heads. */
function showKind(kind) {
  page.kind = kind;
  page.pinned.clear();
  page.pointed = null;
  const { layers } = currentMap();
  page.layer = Math.min(page.layer, layers.length - 1);
  const heads = headsOf(currentMap());
  if (!heads.includes(page.head)) page.head = 0;
  const places = [...layers.keys()];
  choices(
    'layers',
    places,
    (at) => layers[at],
    (at) => chooseHead(at, page.head),
    page.layer,
  );
  choices('heads', heads, headName, (head) => chooseHead(page.layer, head), page.head);
  redraw();
}

/** Fill a group of radio buttons. */
function choices(id, values, nameOf, choose, chosen) {
  byId(id).replaceChildren(
    ...values.map((value) => {
      const radio = {
        type: 'radio',
        name: id,
        value,
        checked: value === chosen,
        change: () => choose(value),
      };
      return element('label', {}, element('input', radio), element('span', {}, `${nameOf(value)}`));
    }),
  );
}

/** Draw everything that depends on the tokens. */
function redraw() {
  drawTokens();
  drawGrid();
  drawTabs();
  update();
}

/** Draw everything that depends on the layer, the head and the selected tokens. */
function update() {
  for (const [id, value] of [
    ['kinds', page.kind],
    ['layers', page.layer],
    ['heads', page.head],
  ]) {
    for (const radio of byId(id).querySelectorAll('input'))
      radio.checked = radio.value === `${value}`;
  }
  page.inColours &&= page.head === 'mean';
  byId('colours').checked = page.inColours;
  byId('colours').parentElement.hidden = headsOf(currentMap()).length === 1;
  colourHeads();
  byId('sum-note').textContent = sumNote(page.showsSpecial, page.head);
  markHead();
  drawWorked();
  drawPanel();
  drawPointed();
}

/** Draw what depends on the token that is pointed at. */
function drawPointed() {
  drawLines();
  markGrid();
  markPanel();
}

/** Point at the token of an element, or at the one with the focus of the keyboard. */
function pointAt(target) {
  const focused = document.activeElement?.matches(':focus-visible') ? document.activeElement : null;
  const node = target?.closest?.('[data-place]') ?? focused?.closest('[data-place]');
  const side = node?.dataset.side ?? 'query';
  const isShown = node && (side === 'key' || node.dataset.stack === queryStack());
  const pointed = isShown ? { side, place: Number(node.dataset.place) } : null;
  if (pointed?.side === page.pointed?.side && pointed?.place === page.pointed?.place) return;
  page.pointed = pointed;
  drawPointed();
}

function start() {
  page.data = JSON.parse(byId('data').textContent);
  page.model = page.data.model && loadModel(page.data.model);
  const options = page.data.examples.map(({ name }, number) =>
    element('option', { value: number }, name),
  );
  byId('example').append(...options);
  byId('example').addEventListener('change', (event) => showStored(Number(event.target.value)));
  byId('special').addEventListener('change', (event) => {
    page.showsSpecial = event.target.checked;
    redraw();
  });
  byId('colours').addEventListener('change', (event) => {
    page.inColours = event.target.checked;
    chooseHead(page.layer, page.inColours ? 'mean' : 0);
  });
  byId('special').parentElement.hidden = !page.data.special.length;
  byId('clear').addEventListener('click', () => {
    page.pinned.clear();
    byId('queries').querySelector('button')?.focus();
    update();
  });
  if (page.model) startTyping();
  ['queries', 'keys', 'grid', 'tabs'].forEach((id) => moveByArrows(byId(id)));
  document.addEventListener('pointerover', (event) => pointAt(event.target));
  document.addEventListener('focusin', (event) => pointAt(event.target));
  document.documentElement.addEventListener('pointerleave', () => pointAt(null));
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawGrid);
  showStored(0);
}

start();
