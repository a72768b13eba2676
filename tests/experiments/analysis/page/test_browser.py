"""The page in a headless Chromium, opened from disk."""

import io
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

from experiments.analysis.collect import Attended, AttentionMaps, Example
from experiments.analysis.page.build import write_page
from experiments.analysis.page.example_data import attention_data
from experiments.analysis.page.model_data import model_data
from tests.experiments.analysis.page.test_model_data import random_state, translation

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium-driver")

HOSTILE = [
    *("</script>", "<img src=x onerror=alert(1)>", "\"'&amp;", "שלום", "e\u0301", "👩‍👩‍👧"),
    *("a\u2028b", "${x}"),
]
PHONE, DESK = (390, 844), (1280, 900)


def example(source, target, seed, layers=2, heads=4):
    """A translation with random attention."""
    read, written, predicted = [*source, "<eos>"], ["<bos>", *target], [*target, "<eos>"]
    sides = {"encoder": (read, read), "decoder": (written, written), "cross": (predicted, read)}
    random, maps = np.random.default_rng(seed), {}
    for kind, (queries, keys) in sides.items():
        weights = random.exponential(size=(layers, heads, len(queries), len(keys))) ** 2
        weights /= weights.sum(axis=-1, keepdims=True)
        maps[kind] = AttentionMaps(kind, [*range(1, layers + 1)], weights, queries, keys)
    steps = [[[token, 0.7], ["other", 0.2], *[["x", 0.01]] * 3] for token in predicted]
    translations = [
        {
            **{"text": text, "score": -0.5, "confidence": 0.7, "ids": [3] * len(predicted)},
            **{"tokens": predicted, "log_probs": [-0.35] * len(predicted), "alternatives": steps},
            "places": [*range(len(predicted))],
        }
        for text in (" ".join(target), "another one")
    ]
    labels, special = {"encoder": read, "decoder": written}, {"encoder": (0, 1), "decoder": (1, 0)}
    inputs = {stack: np.full(len(tokens), 3) for stack, tokens in labels.items()}
    data = attention_data(Example(inputs, labels, special, predicted), Attended(maps))
    movement = {"encoder": [[0.1 * len(read)] * len(read)] * 2}
    return data | {"name": " ".join(source), "translations": translations, "movement": movement}


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """A browser, and the page that it shows."""
    with jax.numpy_dtype_promotion("standard"):
        task = translation({"num_heads": 4, "encoder_layers": 2})
        model = model_data(task, random_state(task))
    path = tmp_path_factory.mktemp("page") / "page.html"
    row = {"kind": "cross", "layer": 1, "head": 1, "entropy": 0.5, "induction": ""}
    write_page(
        path,
        {
            **{"title": "Attention of <b>", "task": "translation", "model": model},
            "special": ["<bos>", "<eos>", "<pad>"],
            "examples": [
                example(["the", "creature", "was", "blue"], ["la", "créature", "bleue"], 1),
                example(HOSTILE, HOSTILE, 2),
            ],
            "heads": [row, row | {"head": 2, "entropy": 0.25, "induction": 0.5}],
            "notes": ["a note <i>"],
        },
    )
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=DRIVER)
    browser = webdriver.Chrome(options=options, service=service)
    browser.get(path.as_uri())
    yield Page(browser, path)
    browser.quit()


@pytest.fixture
def page(opened):
    """The page as it is after it was opened, on a desk and in light colours."""
    opened.show(DESK, "light")
    opened.browser.refresh()
    return opened


class Page:
    """What a person does with the page."""

    def __init__(self, browser, path):
        self.browser, self.path = browser, path

    def show(self, size, scheme):
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def script(self, text, *values):
        return self.browser.execute_script(f"return {text}", *values)

    def all(self, selector):
        return self.browser.find_elements("css selector", selector)

    def one(self, selector):
        return self.browser.find_element("css selector", selector)

    def text(self, selector):
        found = self.script("document.querySelector(arguments[0]).textContent", selector)
        return found.replace("\xa0", " ")

    def click(self, selector):
        self.script("document.querySelector(arguments[0]).click()", selector)

    def press(self, *keys):
        for key in keys:
            webdriver.ActionChains(self.browser).send_keys(getattr(webdriver.Keys, key)).perform()

    def point(self, selector):
        pointer = webdriver.ActionChains(self.browser, duration=0)
        pointer.move_to_element(self.one(selector)).perform()

    def choose(self, number):
        change = "arguments[0].dispatchEvent(new Event('change'))"
        self.script(f"(arguments[0].value = {number}, {change})", self.one("#example"))

    def pixels(self, selector):
        """A screenshot of an element; the frame after the last change is drawn first."""
        self.browser.execute_async_script(
            "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
        )
        image = Image.open(io.BytesIO(self.one(selector).screenshot_as_png)).convert("RGB")
        return np.asarray(image).astype(int)


def test_no_request_and_no_message(page):
    page.click("#tab-heads")
    page.click("#special")
    messages = [json.loads(each["message"]) for each in page.browser.get_log("performance")]
    urls = {
        each["message"]["params"]["request"]["url"]
        for each in messages
        if each["message"]["method"] == "Network.requestWillBeSent"
    }
    assert urls <= {page.path.as_uri()}
    assert page.browser.get_log("browser") == []


def test_markup_in_words_is_text(page):
    page.choose(1)
    labels = page.script("[...document.querySelectorAll('#keys bdi')].map((e) => e.textContent)")
    assert labels == [*HOSTILE, "<eos>"]
    assert page.text("#reading bdi") == " ".join(HOSTILE)
    assert page.text("h1") == "Attention of <b>"
    assert page.all("main img, main script, h1 b") == []


def test_another_head_is_drawn(page):
    before = page.pixels("#links"), page.text("#links")
    page.click("#heads input[value='1']")
    after = page.pixels("#links")
    assert (abs(before[0] - after).max(axis=-1) > 32).sum() > 200
    assert "head 2" in page.text("#caption")
    page.click("#grid button[data-layer='1'][data-head='max']")
    assert "layer 2, max of the heads" in page.text("#caption")
    assert "sum to more than 1" in page.text("#sum-note")
    assert page.script("document.querySelector('#layers input[value=\"1\"]').checked")


def test_all_heads_in_colours(page):
    one = len(page.all("#links path"))
    page.click("#colours")
    assert "mean of the heads" in page.text("#caption")
    colours = "[...document.querySelectorAll('#links path')].map((e) => getComputedStyle(e).stroke)"
    found = page.script(colours)
    assert len({*found}) == page.script("currentMap().shape[1]") and len(found) > one
    page.click("#heads [value='0']")
    assert not page.script("byId('colours').checked")
    assert len({*page.script(colours)}) == 1


def test_pointing_at_a_word(page):
    page.click("#kinds [value=cross]")
    whole = len(page.all("#links path"))
    page.point("#queries li:nth-child(2) button")
    assert "créature is predicted from" in page.text("#caption")
    assert 0 < len(page.all("#links path")) < whole
    assert page.all("#grid.pointed")
    page.point("#keys li:nth-child(1) button")
    assert "the is attended to by" in page.text("#caption")
    page.point("h1")
    assert "all tokens" in page.text("#caption")
    assert len(page.all("#links path")) == whole


def test_keyboard(page):
    page.click("#kinds [value=cross]")
    page.script("document.querySelector('#queries button').focus()")
    page.press("ARROW_DOWN", "ARROW_DOWN")
    assert "bleue is predicted from" in page.text("#caption")
    page.press("ENTER", "HOME", "ENTER", "TAB")
    assert page.script("document.activeElement.closest('ol').id") == "keys"
    page.script("document.querySelector('#tabs button').focus()")
    assert "2 tokens, on average" in page.text("#caption")
    page.press("ARROW_RIGHT")
    assert page.all("#tab-translations[aria-selected=true]")
    page.click("#clear")
    assert "la is predicted from" in page.text("#caption")
    page.click("#heads input[value='2']")
    assert page.script("document.querySelector('#grid [tabindex=\"0\"]').dataset.head") == "2"


def test_calculations_of_two_words_side_by_side(page):
    numbers = (
        "[...document.querySelectorAll('#worked .keys td:nth-child(6)')].map((e) => e.textContent)"
    )
    page.click("#keys [data-place='1']")
    assert "creature (word 2) in encoder self-attention, layer 1, head 1" in page.text("#worked h3")
    weights = page.script("[...rowOf(1)]")
    assert page.script(numbers) == [f"{weight:.4f}" for weight in weights]
    page.click("#heads [value='1']")
    assert page.script(numbers) == [f"{weight:.4f}" for weight in page.script("[...rowOf(1)]")]
    page.script("document.querySelector('#queries button').focus()")
    page.press("END", "ENTER")
    assert len(page.all("#worked article")) == 2
    assert "tutorial, page 3: Why √d" in page.text("#worked") and not page.all("#worked a")
    page.click("#heads [value=mean]")
    assert "Choose one head" in page.text("#worked-note")
    page.click("#kinds [value=cross]")
    assert not page.one("#worked").is_displayed()


def test_hidden_special_tokens(page):
    assert page.one("#special").size["width"] >= 24  # pixels, of WCAG 2.2
    page.click("#special")
    assert "Special tokens are hidden" in page.text("#sum-note")
    assert "<eos>" not in page.text("#keys") + page.text("#queries") + page.text("#panel")
    page.point("#queries li:nth-child(2) button")
    assert "is on hidden tokens" in page.text("#caption")


def test_translations_steps_movement_and_notes(page):
    page.click("#kinds [value=cross]")
    page.click("#tab-translations")
    assert len(page.all(".translations [type=radio]")) == 2
    assert page.all(".translations tr:nth-child(1) :checked")
    assert "créature" in page.text(".step:nth-child(2)")
    page.point(".step:nth-child(2)")
    assert "créature is predicted from" in page.text("#caption")
    page.click("#tab-movement")
    assert "0.50" in page.text("#panel tbody td")
    page.click("#tab-notes")
    assert "a note <i>" in page.text("#panel") and "float16" in page.text("#panel")


def test_sampling(page):
    page.click("#tab-translations")
    bars = len(page.all(".step:nth-child(1) .bar"))
    page.browser.execute_script(
        "const [, topK] = document.querySelectorAll('[type=range]'); topK.value = 2;"
        "topK.dispatchEvent(new Event('input'))"
    )
    assert len(page.all(".step:nth-child(1) .bar")) == 2 < bars
    page.click("#by-chance")
    assert "(by chance)" in page.text(".translations tr:nth-child(3)")
    assert page.all(".translations tr:nth-child(3) :checked")
    assert page.script("document.activeElement.id") == "by-chance"


def test_typed_sentence(page):
    page.one("#text").send_keys("Zoe visits the blorp", webdriver.Keys.ENTER)
    assert "“blorp”" in page.text("#status")
    assert page.text("#keys li:nth-child(4)") == "blorp (unknown word)"
    assert page.text("#reading").startswith("Zoe visits the blorp → ")
    rows = page.script("[...rowOf(0)].reduce((sum, weight) => sum + weight)")
    assert abs(rows - 1) < 1e-5
    page.click("#kinds [value=cross]")
    before = page.text("#queries")
    page.click("#tab-translations")
    page.click("tr:nth-child(2) [type=radio]")
    assert page.text("#queries") != before
    assert page.all(".translations tr:nth-child(2) :checked")
    page.one("#text").clear()
    page.one("#text").send_keys("the " * 20, webdriver.Keys.ENTER)
    assert "reads at most" in page.text("#status")
    assert page.text("#reading bdi") == "the creature was blue"


@pytest.mark.parametrize(
    ("size", "scheme"), [(DESK, "dark"), (PHONE, "light")], ids=["desk", "phone"]
)
def test_accessibility(page, size, scheme):
    axe = pytest.importorskip("axe_core_python", reason="needs axe-core-python")
    page.show(size, scheme)
    page.browser.execute_script((Path(axe.__file__).parent / "axe.min.js").read_text())
    page.choose(1)
    page.click("#queries button")
    for tab in ("weights", "translations", "movement", "heads", "notes"):
        page.click(f"#tab-{tab}")
        part = "document" if tab == "weights" else "'#panel'"
        found = page.browser.execute_async_script(f"axe.run({part}).then(arguments[0])")
        assert [(each["id"], each["nodes"][0]["html"]) for each in found["violations"]] == []
    assert page.script("document.documentElement.scrollWidth") <= size[0]
