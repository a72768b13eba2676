'use strict';

// Answers of the model, and the probabilities of their parts.

/** Return the list of translations, and the alternatives for each part of the chosen one. */
function translationPanel() {
  const { translations, chosen = 0 } = page.example;
  const parts = translations.length > 1 ? [translationList(translations, chosen)] : [];
  return [...parts, stepsOf(translations[chosen])];
}

function translationList(translations, chosen) {
  const rows = translations.map((each, number) => {
    const choose = { type: 'radio', name: 'translation', change: () => chooseTranslation(number) };
    const radio = element('input', { ...choose, checked: number === chosen });
    const label = element('label', { class: 'check' }, radio, element('bdi', {}, each.text));
    if (each.given) label.append(' (given)');
    return element(
      'tr',
      {},
      element('td', {}, label),
      element('td', {}, percent(each.confidence)),
      element('td', {}, each.score.toFixed(2)),
    );
  });
  const only = page.model ? '' : '; the maps are those of the first one';
  const head = ['translation', 'probability per token', 'score'].map((name) => columnHead(name));
  return tableOf(`The best translations${only}`, head, rows, 'translations');
}

/** Return a card for each step, gap or class: what was chosen, and what else is probable. */
function stepsOf({ tokens, places, log_probs: logProbs, alternatives }) {
  const { decoder } = page.example.stacks;
  const cards = tokens.map((token, step) => {
    const rows = alternatives[step].map(([other, probability]) =>
      setNumber(
        element(
          'li',
          { class: other === token ? 'bar chosen' : 'bar' },
          tokenText(other),
          ' ',
          element('span', {}, percent(probability)),
        ),
        'weight',
        probability,
      ),
    );
    const title = element(
      'p',
      {},
      element('strong', {}, tokenText(token)),
      ' ',
      element('span', {}, percent(Math.exp(logProbs[step]))),
    );
    return element(
      'li',
      {
        class: 'step',
        'data-place': places[step] ?? undefined,
        'data-stack': decoder ? 'decoder' : 'encoder',
      },
      title,
      element('ol', {}, ...rows),
    );
  });
  return element(
    'section',
    {},
    element('h3', {}, decoder ? 'Each step, with its most probable tokens' : 'Probabilities'),
    element('ol', { class: 'steps' }, ...cards),
  );
}

/** Show another translation; the model of the page computes its attention. */
function chooseTranslation(number) {
  const { example, model } = page;
  const other = { ...example, chosen: number };
  if (model) {
    const { ids } = example.translations[number];
    Object.assign(other, passOf(example.stacks.encoder, ids));
  }
  showExample(other);
  document.querySelectorAll('[name=translation]')[number].focus();
}
