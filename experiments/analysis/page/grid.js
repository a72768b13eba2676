'use strict';

// A small map for each head, and for the mean and maximum of the heads of a layer.

/** Draw the maps of all heads of the kind of attention that is shown. */
function drawGrid() {
  const { layers, queries, keys } = currentMap();
  const heads = headsOf(currentMap());
  const [rows, columns] = [queries, keys].map(shownPlaces);
  const blocks = layers.map((number, layer) => {
    const buttons = heads.map((head) =>
      mapButton(currentMap(), layer, head, rows, columns, {
        'aria-label': `layer ${number}, ${headTitle(head)}`,
        click: () => chooseHead(layer, head),
      }),
    );
    const title = element('h3', {}, `Layer ${number}`);
    return element('div', { class: 'layer' }, title, element('div', { class: 'maps' }, ...buttons));
  });
  byId('grid').replaceChildren(...blocks);
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
