'use strict';

// The tabs below the lines: numbers of the example and of the model.

const PANELS = {
  weights: ['Weights', weightsPanel, () => true],
  translations: ['Predictions', translationPanel, () => page.example.translations.length],
  movement: ['Movement', movementTables, () => Object.keys(page.example.movement).length],
  heads: ['Heads', headsTable, () => page.data.heads.length],
  notes: ['Notes', notesPanel, () => true],
};

/** Draw the tabs that the example has. */
function drawTabs() {
  const names = Object.keys(PANELS).filter((name) => PANELS[name][2]());
  if (!names.includes(page.panel)) [page.panel] = names;
  const tabs = names.map((name) =>
    element(
      'button',
      {
        type: 'button',
        role: 'tab',
        id: `tab-${name}`,
        'aria-controls': 'panel',
        'aria-selected': `${name === page.panel}`,
        click: () => choosePanel(name),
        focus: () => choosePanel(name),
      },
      PANELS[name][0],
    ),
  );
  fillButtons(byId('tabs'), tabs, names.indexOf(page.panel));
}

function choosePanel(name) {
  if (page.panel === name) return;
  page.panel = name;
  for (const tab of byId('tabs').children)
    tab.setAttribute('aria-selected', tab.id === `tab-${name}`);
  drawPanel();
  markPanel();
}

function drawPanel() {
  byId('panel').replaceChildren(...PANELS[page.panel][1]());
  byId('panel').setAttribute('aria-labelledby', `tab-${page.panel}`);
}

/** Mark the rows and steps of the tokens that are pointed at or selected. */
function markPanel() {
  const active = activeQueries();
  const areAll = active.length === shownPlaces(currentMap().queries).length;
  for (const node of byId('panel').querySelectorAll('[data-place]')) {
    const isActive =
      !areAll && page.pointed?.side !== 'key' && active.includes(Number(node.dataset.place));
    node.classList.toggle('active', isActive && node.dataset.stack === queryStack());
  }
}

function notesPanel() {
  const source = page.model
    ? 'All weights are computed in this page, in float32, by the parameters in float16.'
    : 'Stored weights are rounded to 1/255: each is off by at most 0.2 percentage points.';
  const notes = [...page.data.notes, source];
  return [element('ul', {}, ...notes.map((note) => element('li', {}, note)))];
}
