"""Inflection of words: plurals, feminines and conjugations, from strings to strings."""

from experiments.data.toy_language import lexicon

# Grammatical persons, in the order of the French conjugation tables: I, he or she, we, you, they.
PERSONS = ("je", "il", "nous", "vous", "ils")

_IRREGULAR = {line.split()[0]: line.split()[1:] for line in lexicon.IRREGULAR.strip().splitlines()}
_VOWELS = "aeiouhàâéèêîôûœAEIOUHÉ"


def starts_with_vowel(french: str) -> bool:
    """Return whether the word before it elides: a vowel or a mute h."""
    return french[0] in _VOWELS and french not in lexicon.ASPIRATED


def french_plural(word: str) -> str:
    """Return the plural of a noun or adjective."""
    if word in lexicon.FRENCH_PLURALS:
        return lexicon.FRENCH_PLURALS[word]
    if word[-1] in "sxz" or word.startswith("en "):
        return word
    if word.endswith("al"):
        return word[:-1] + "ux"
    return word + ("x" if word.endswith(("eau", "hibou")) else "s")


def english_plural(word: str) -> str:
    """Return the plural of a noun, or the -s form of a verb."""
    if word in lexicon.ENGLISH_PLURALS:
        return lexicon.ENGLISH_PLURALS[word]
    if word.endswith(("s", "x", "ch", "sh", "go", "tomato")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def english_article(next_word: str) -> str:
    """Return `a` or `an`."""
    return "an" if next_word[0] in "aeiouAEIOU" or next_word == "honest" else "a"


def present(infinitive: str) -> dict[str, str]:
    """Return the French present tense by person."""
    if infinitive in _IRREGULAR:
        return dict(zip(PERSONS, _IRREGULAR[infinitive][:5], strict=True))
    stem = infinitive[:-2]
    soft = stem + "e" if stem.endswith("g") else stem
    forms = (stem + "e", stem + "e", soft + "ons", stem + "ez", stem + "ent")
    return dict(zip(PERSONS, forms, strict=True))


def imparfait(infinitive: str) -> dict[str, str]:
    """Return the French imparfait by person: from the stem of the present with `nous`."""
    stem = "ét" if infinitive == "être" else present(infinitive)["nous"][:-3]
    hard = stem[:-1] if stem.endswith("ge") else stem
    forms = (stem + "ais", stem + "ait", hard + "ions", hard + "iez", stem + "aient")
    return dict(zip(PERSONS, forms, strict=True))


def participle(infinitive: str, gender: str = "m", plural: bool = False) -> str:
    """Return the French past participle in agreement."""
    irregular = _IRREGULAR.get(infinitive)
    form = irregular[5] if irregular else infinitive[:-2] + "é"
    if gender == "f":
        form += "e"
    return french_plural(form) if plural else form
