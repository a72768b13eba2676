'use strict';

// Tables of weights, of the movement of vectors, and of heads.

const MOST_CELLS = 3000; // of the table of weights; above it, only selected tokens have rows

/** Make a table in a box that scrolls. */
function tableOf(caption, head, rows, className = '') {
  const first = element('tr', {}, ...head);
  return element(
    'div',
    { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption },
    element(
      'table',
      { class: className },
      element('caption', {}, caption),
      element('thead', {}, first),
      element('tbody', {}, ...rows),
    ),
  );
}

/** Return the table behind the map that is drawn, in percent. */
function weightsPanel() {
  const map = currentMap();
  const [shown, columns] = [map.queries, map.keys].map(shownPlaces);
  const isLarge = shown.length * columns.length > MOST_CELLS;
  const selected = isLarge ? shown.filter((place) => page.pinned.has(place)) : shown;
  const only = isLarge ? '; select tokens in the lines to list their rows' : '';
  const caption = `Weights of ${map.title} in %: rows attend to columns${only}`;
  const placeOf = (query) => ({ 'data-place': query, 'data-stack': queryStack() });
  return [weightTable(map, caption, rowOf, selected, columns, placeOf)];
}

/** Return tables of how far each layer moves the vector of each token. */
function movementTables() {
  const { movement } = page.example;
  const largest = Math.max(...Object.values(movement).flat(2), 1e-9); // one scale for all bars
  const found = ['encoder', 'decoder']
    .filter((stack) => movement[stack])
    .map((stack) => {
      const layers = movement[stack];
      const { labels } = page.example.stacks[stack];
      const head = [
        columnHead('token'),
        ...layers.map((_, layer) => columnHead(`layer ${layer + 1}`)),
      ];
      const rows = shownPlaces(labels).map((place) => {
        const cells = layers.map((layer) =>
          setNumber(
            element('td', { class: 'bar' }, layer[place].toFixed(2)),
            'weight',
            layer[place] / largest,
          ),
        );
        return element(
          'tr',
          { 'data-place': place, 'data-stack': stack },
          rowHead(tokenText(labels[place])),
          ...cells,
        );
      });
      const caption = `${stack}: cosine distance between the vector of a token before and after each layer`;
      return tableOf(caption, head, rows);
    });
  return [element('div', { class: 'beside' }, ...found)];
}

/** Draw the head of a row of the table. */
function drawHead({ kind, layer, head }) {
  if (!page.example.maps[kind]) return;
  showKind(kind);
  chooseHead(currentMap().layers.indexOf(layer), head - 1);
}

const order = { column: '', descending: false };

/** Return the table of heads; a click on a column sorts it. */
function headsTable() {
  const columns = Object.keys(page.data.heads[0]);
  const sortBy = (column) => {
    order.descending = order.column === column && !order.descending;
    order.column = column;
    drawPanel();
    byId('panel').querySelectorAll('thead button')[columns.indexOf(column)].focus();
  };
  const direction = (column) =>
    order.column === column && (order.descending ? 'descending' : 'ascending');
  const head = columns.map((column) =>
    element(
      'th',
      { scope: 'col', 'aria-sort': direction(column) },
      element('button', { type: 'button', click: () => sortBy(column) }, column),
    ),
  );
  const rows = order.column
    ? sortedRows(page.data.heads, order.column, order.descending)
    : page.data.heads;
  const written = (value) =>
    Number.isInteger(value) || typeof value === 'string' ? `${value}` : value.toFixed(2);
  const lines = rows.map((row) => {
    const [kind, ...rest] = columns.map((column) => written(row[column]));
    const label = `draw ${kind}, layer ${row.layer}, head ${row.head}`;
    const draw = { type: 'button', 'aria-label': label, click: () => drawHead(row) };
    const cells = [element('button', draw, kind), ...rest];
    return element('tr', {}, ...cells.map((cell) => element('td', {}, cell)));
  });
  return [tableOf('Heads, means over many examples', head, lines)];
}
