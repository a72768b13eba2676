"""Inflection of words: plurals, agreement and conjugations, from strings to strings."""

from experiments.data.toy_language.lexicon import (
    ASPIRATED,
    ENGLISH_PLURALS,
    FRENCH_PLURALS,
    IRREGULAR,
    Adjective,
)

# Grammatical persons, in the order of the French conjugation tables: I, he or she, we, you, they.
PERSONS = ("je", "il", "nous", "vous", "ils")
_BEFORE_VOWEL = {"beau": "bel", "nouveau": "nouvel", "vieux": "vieil"}
_VOWELS = "aeiouhàâéèêîôûœAEIOUHÉ"


def starts_with_vowel(french: str) -> bool:
    """Return whether the word before it elides: a vowel or a mute h."""
    return french[0] in _VOWELS and french not in ASPIRATED


def french_plural(word: str) -> str:
    """Return the plural of a noun or adjective.

    >>> french_plural("cheval"), french_plural("oiseau"), french_plural("en bois")
    ('chevaux', 'oiseaux', 'en bois')
    """
    if word in FRENCH_PLURALS:
        return FRENCH_PLURALS[word]
    if word[-1] in "sxz" or word.startswith("en "):
        return word
    if word.endswith("al"):
        return word[:-1] + "ux"
    return word + ("x" if word.endswith(("eau", "hibou")) else "s")


def english_plural(word: str) -> str:
    """Return the plural of a noun, or the -s form of a verb."""
    if word in ENGLISH_PLURALS:
        return ENGLISH_PLURALS[word]
    if word.endswith(("s", "x", "ch", "sh", "go", "tomato")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def english_article(next_word: str) -> str:
    """Return `a` or `an`."""
    return "an" if next_word[0] in "aeiouAEIOU" or next_word == "honest" else "a"


def agree(adjective: Adjective, gender: str, plural: bool, next_word: str = "") -> str:
    """Return the French form of an adjective; `next_word` is the noun that it precedes.

    >>> from experiments.data.toy_language.lexicon import ADJECTIVE
    >>> agree(ADJECTIVE["old"], "m", False, "hôtel"), agree(ADJECTIVE["old"], "m", True, "hôtels")
    ('vieil', 'vieux')
    """
    form = adjective.feminine if gender == "f" else adjective.masculine
    if plural:
        return french_plural(form)
    return _BEFORE_VOWEL.get(form, form) if next_word and starts_with_vowel(next_word) else form


def present(infinitive: str) -> dict[str, str]:
    """Return the French present tense by person."""
    stem = infinitive[:-2]
    soft = stem + "e" if stem.endswith("g") else stem
    regular = (stem + "e", stem + "e", soft + "ons", stem + "ez", stem + "ent")
    return dict(zip(PERSONS, IRREGULAR.get(infinitive, regular), strict=False))


def imparfait(infinitive: str) -> dict[str, str]:
    """Return the French imparfait by person: from the stem of the present with `nous`.

    >>> imparfait("manger")["il"], imparfait("manger")["nous"]
    ('mangeait', 'mangions')
    """
    stem = "ét" if infinitive == "être" else present(infinitive)["nous"][:-3]
    hard = stem[:-1] if stem.endswith("ge") else stem
    forms = (stem + "ais", stem + "ait", hard + "ions", hard + "iez", stem + "aient")
    return dict(zip(PERSONS, forms, strict=True))


def participle(infinitive: str, gender: str = "m", plural: bool = False) -> str:
    """Return the French past participle in agreement."""
    *_, form = IRREGULAR.get(infinitive, [infinitive[:-2] + "é"])
    form += "e" if gender == "f" else ""
    return french_plural(form) if plural else form
