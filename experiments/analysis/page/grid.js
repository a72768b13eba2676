'use strict';

// A small map for each head, and for the mean and maximum of the heads of a layer.

const MOST_PIXELS = 128; // of each side of a small map; of larger maps every n-th row is drawn

/** Draw the maps of all heads of the kind of attention that is shown. */
function drawGrid() {
  const { layers, queries, keys } = currentMap();
  const heads = headsOf(currentMap());
  const [rows, columns] = [queries, keys].map(shownPlaces);
  const blocks = layers.map((number, layer) => {
    const buttons = heads.map((head) => {
      const canvas = element('canvas');
      const map = element('span', { class: 'map' }, canvas, element('span', { class: 'band' }));
      const button = element(
        'button',
        {
          type: 'button',
          'data-layer': layer,
          'data-head': head,
          'aria-label': `layer ${number}, ${headTitle(head)}`,
          click: () => chooseHead(layer, head),
        },
        map,
        element('span', { 'aria-hidden': 'true' }, headName(head)),
      );
      requestAnimationFrame(() => drawSmallMap(canvas, layer, head, rows, columns));
      return button;
    });
    const title = element('h3', {}, `Layer ${number}`);
    return element('div', { class: 'layer' }, title, element('div', { class: 'maps' }, ...buttons));
  });
  byId('grid').replaceChildren(...blocks);
}

/** Draw a map, one pixel for each weight: the colour of the text, as opaque as the weight. */
function drawSmallMap(canvas, layer, head, rows, columns) {
  const [down, across] = [rows, columns].map(({ length }) => Math.ceil(length / MOST_PIXELS));
  const [queries, keys] = [
    rows.filter((_, i) => i % down === 0),
    columns.filter((_, i) => i % across === 0),
  ];
  if (!canvas.isConnected || !queries.length || !keys.length) return;
  [canvas.width, canvas.height] = [keys.length, queries.length];
  canvas.style.aspectRatio = `${Math.max(columns.length, 1)} / ${rows.length}`;
  const [red, green, blue] = getComputedStyle(canvas)
    .color.match(/[\d.]+/g)
    .map(Number);
  const context = canvas.getContext('2d');
  const image = context.createImageData(keys.length, queries.length);
  queries.forEach((query, i) => {
    const weights = rowOfMap(currentMap(), layer, head, query);
    keys.forEach((key, j) => {
      image.data.set([red, green, blue, Math.round(255 * weights[key])], 4 * (i * keys.length + j));
    });
  });
  context.putImageData(image, 0, 0);
}

/** Mark the chosen head, which Tab reaches. */
function markHead() {
  const chosen = `[data-layer="${page.layer}"][data-head="${page.head}"]`;
  for (const button of byId('grid').querySelectorAll('button')) {
    button.setAttribute('aria-pressed', button.matches(chosen));
  }
  reach(byId('grid'), byId('grid').querySelector(chosen));
}

/** Mark in each map the query that is pointed at. */
function markGrid() {
  const shown = shownPlaces(currentMap().queries);
  const at = page.pointed?.side === 'query' ? shown.indexOf(page.pointed.place) : -1;
  byId('grid').classList.toggle('pointed', at >= 0);
  setNumber(byId('grid'), 'at', at / shown.length);
  setNumber(byId('grid'), 'size', 1 / shown.length);
}

function chooseHead(layer, head) {
  Object.assign(page, { layer, head });
  update();
}
