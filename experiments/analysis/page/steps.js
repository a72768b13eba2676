'use strict';

// Answers of the model, and the probabilities of their parts.

/** Return the list of translations, and the alternatives for each part of the chosen one. */
function translationPanel() {
  const { translations, chosen = 0 } = page.example;
  const parts = translations.length > 1 ? [translationList(translations, chosen)] : [];
  const answer = translations[chosen];
  if (!page.model?.decoder) return [...parts, stepsOf(answer)];
  const steps = element('div');
  const draw = () => {
    steps.replaceChildren(stepsOf(withSettings(answer)));
    markPanel();
  };
  steps.append(stepsOf(withSettings(answer)));
  return [...parts, samplingControls(draw), steps];
}

/** Return an answer with the probabilities that the settings of sampling give its steps. */
function withSettings(answer) {
  const { logits, logitsShape } = page.example;
  const { labels } = page.model.target;
  const kept = answer.places.map((place) =>
    keptProbabilities(logits.subarray(place * logitsShape[1], (place + 1) * logitsShape[1]), page.settings),
  );
  const listed = (probabilities) =>
    largest(probabilities, NUM_ALTERNATIVES)
      .filter((id) => probabilities[id] > 0)
      .map((id) => [labels[id], probabilities[id]]);
  const logProbs = kept.map((probabilities, step) => Math.log(probabilities[answer.ids[step]]));
  return { ...answer, log_probs: logProbs, alternatives: kept.map(listed) };
}

const ALL = 21; // top-k at the end of its slider

/** Return sliders of temperature, top-k and top-p, and a button that writes by chance. */
function samplingControls(draw) {
  const { settings } = page;
  const slider = (text, name, range, read, shown) => {
    const output = element('output', {}, shown());
    const set = (event) => {
      settings[name] = read(Number(event.target.value));
      output.textContent = shown();
      draw();
    };
    const value = Math.min(settings[name], range.max);
    const input = element('input', { type: 'range', ...range, value, input: set });
    return element('label', {}, `${text} `, output, input);
  };
  const same = (value) => value;
  return element(
    'fieldset',
    { class: 'controls sampling' },
    element('legend', {}, 'How the next token is drawn (tutorial, page 11: Generation)'),
    slider('Temperature', 'temperature', { min: 0.1, max: 2, step: 0.1 }, same, () =>
      settings.temperature.toFixed(1),
    ),
    slider(
      'Top-k',
      'topK',
      { min: 1, max: ALL, step: 1 },
      (value) => (value === ALL ? Infinity : value),
      () => (settings.topK === Infinity ? 'all' : `${settings.topK}`),
    ),
    slider('Top-p', 'topP', { min: 0.05, max: 1, step: 0.05 }, same, () => settings.topP.toFixed(2)),
    element('button', { type: 'button', id: 'by-chance', click: writeByChance }, 'Write by chance'),
  );
}

function translationList(translations, chosen) {
  const rows = translations.map((each, number) => {
    const choose = { type: 'radio', name: 'translation', change: () => chooseTranslation(number) };
    const radio = element('input', { ...choose, checked: number === chosen });
    const label = element('label', { class: 'check' }, radio, element('bdi', {}, each.text));
    if (each.given) label.append(' (given)');
    if (each.sampled) label.append(' (by chance)');
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
