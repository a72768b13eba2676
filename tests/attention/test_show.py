"""Weights as a grid in a notebook: the document, its errors, and the grid in a browser."""

import html
import json
import re
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from attention import show

WORDS = ["the", "</script><img src=x>", "\"'&amp;", "שלום"]
WEIGHTS = np.random.default_rng(0).dirichlet(np.ones(4), size=(3, 4))  # [N, T, S]


def data_of(grid):
    """The data in the frame of a notebook."""
    (document,) = re.findall(r'^<iframe srcdoc="([^"]*)"', grid._repr_html_())
    (data,) = re.findall(r"showWeights\((\{.*\})\);", html.unescape(document))
    return json.loads(data), document


def test_frame_contains_numbers_and_escaped_words():
    data, document = data_of(show(jnp.asarray(WEIGHTS, jnp.float32), WORDS))
    assert data["queries"] == data["keys"] == WORDS
    weights = np.reshape(data["weights"], data["shape"])
    assert weights.shape == (1, 3, 4, 4) and abs(weights - WEIGHTS).max() < 1e-4
    assert "<" not in document and html.unescape(document).count("</script>") == 1
    assert html.unescape(document).count("<img") == 0
    assert "default-src &#x27;none&#x27;" in document and "://" not in document


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16, bool, int])
def test_one_head_and_other_keys(dtype):
    data, _ = data_of(show(jnp.eye(4)[:3].astype(dtype), (1, 2, 3), keys=WORDS))
    assert (data["queries"], data["keys"], data["shape"]) == (["1", "2", "3"], WORDS, [1, 1, 3, 4])


@pytest.mark.parametrize(
    ("given", "error", "reason"),
    [
        ((WEIGHTS, WORDS[1:]), ValueError, "tokens are 3 words for T = 4"),
        ((WEIGHTS, WORDS, WORDS * 2), ValueError, "keys are 8 words for S = 4"),
        ((WEIGHTS, "the "), TypeError, "tokens must be a list of words"),
        ((WEIGHTS[None], WORDS), ValueError, r"\(1, 3, 4, 4\): choose one example"),
        ((WEIGHTS.astype(complex), WORDS), TypeError, "dtype complex128"),
        ((WEIGHTS - 1, WORDS), ValueError, "must be from 0 to 1"),
        ((WEIGHTS * np.nan, WORDS), ValueError, "must be from 0 to 1"),
        ((np.zeros((300, 300)), WORDS), ValueError, "too many weights"),
    ],
)
def test_errors(given, error, reason):
    with pytest.raises(error, match=reason):
        show(*given)


def test_grid_in_a_browser(tmp_path):
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("needs chromium-driver")
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><meta charset=utf-8>{show(WEIGHTS, WORDS)._repr_html_()}")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(flag)
    service = webdriver.ChromeService(executable_path=driver)
    with webdriver.Chrome(options=options, service=service) as browser:
        browser.get(path.as_uri())
        browser.switch_to.frame(browser.find_element("tag name", "iframe"))

        def readout():
            return browser.find_element("css selector", ".readout").text

        assert [each.text for each in browser.find_elements("css selector", "tbody bdi")] == WORDS
        browser.find_elements("css selector", ".maps button")[1].click()
        cells = browser.find_elements("css selector", "td[data-key]")
        webdriver.ActionChains(browser, duration=0).move_to_element(cells[4]).perform()
        assert readout() == f"{WORDS[1]} → the: {WEIGHTS[1, 1, 0]:.4f}"
        browser.execute_script("arguments[0].focus()", cells[0])
        keys = webdriver.Keys.ARROW_DOWN, webdriver.Keys.ARROW_RIGHT
        webdriver.ActionChains(browser).send_keys(*keys).perform()
        assert readout() == f"{WORDS[1]} → {WORDS[1]}: {WEIGHTS[1, 1, 1]:.4f}"
        assert browser.get_log("browser") == []
