"""Lexicon: tables of nouns, adjectives, verbs and senses of polysemous words, and their forms.

Classes of nouns exclude nonsense such as tables that eat: a verb lists the classes of its subjects
and of its objects, an adjective those of its nouns. In tables `~` joins the words of a term,
`/` separates alternatives, and `-` is none.
"""

from collections.abc import Callable
from typing import Any, NamedTuple


class Noun(NamedTuple):
    """A noun, or one sense of a polysemous noun, with its cues."""

    english: str
    french: str
    gender: str
    kind: str
    owners: tuple[str, ...] = ()
    wholes: tuple[str, ...] = ()
    adjectives: tuple[str, ...] = ()

    @property
    def cues(self) -> set[str]:
        """Words that occur with this sense, and with no other sense of the word."""
        return {*self.owners, *self.wholes, *self.adjectives}


class Adjective(NamedTuple):
    """An adjective; `order` is its rank among English adjectives."""

    english: str
    masculine: str
    feminine: str
    order: str
    kinds: frozenset[str]


class Verb(NamedTuple):
    """A verb; `past` is the name of the French tense, `complement` the kind of complement."""

    english: str
    particle: str
    english_past: str
    french: str
    past: str
    subjects: frozenset[str]
    complement: str
    objects: frozenset[str]


def _table(text: str, entry: Callable[..., Any] = lambda *cells: cells) -> list[Any]:
    """Read entries, separated by commas or lines; the head of a line is the last cell of each.

    >>> _table("food: apple pomme f, pear poire f")
    [('apple', 'pomme', 'f', 'food'), ('pear', 'poire', 'f', 'food')]
    """
    entries = []
    for line in text.strip().splitlines():
        head, colon, words = line.rpartition(":")
        for cells in words.split(","):
            cells = [cell.replace("~", " ") for cell in cells.split()]
            entries.append(entry(*cells, head) if colon else entry(*cells))
    return entries


def _words(cell: str) -> tuple[str, ...]:
    return () if cell == "-" else tuple(cell.split("/"))


def _kinds(cell: str) -> frozenset[str]:
    return frozenset(kind for name in _words(cell) for kind in _CLASSES.get(name, [name]))


def _sense(english: str, french: str, gender: str, *cues: str) -> Noun:
    return Noun(english, french, gender, "polysemous", *map(_words, cues))


def _adjective(english: str, masculine: str, feminine: str, order: str, kinds: str) -> Adjective:
    return Adjective(english, masculine, feminine, order, _kinds(kinds))


def _verb(
    words: str, past: str, french: str, tense: str, subjects: str, complement: str, objects: str
) -> Verb:
    english, _, particle = words.partition(" ")
    kinds = _kinds(subjects), _kinds(objects)
    return Verb(english, particle, past, french, tense, kinds[0], complement, kinds[1])


# A name for several classes at once.
_CLASSES = {
    name: kinds
    for name, *kinds in _table("""
living person animal bird creature, beast animal bird creature, legged animal creature
goods thing clothes reading, nature land shore water
""")
}

# class: english french gender
NOUNS = _table("""
person:    boy garçon m, girl fille f, man homme m, woman femme f, king roi m, queen reine f
person:    prince prince m, princess princesse f, friend ami m, aunt tante f, uncle oncle m
person:    grandmother grand-mère f, nurse infirmière f, actress actrice f, doctor médecin m
person:    teacher professeur m, student étudiant m, engineer ingénieur m, lawyer avocat m
person:    banker banquier m, fisherman pêcheur m, swimmer nageur m, player joueur m
person:    coach entraîneur m, biologist biologiste m, shepherd berger m, mechanic mécanicien m
person:    sailor marin m, cook cuisinier m, historian historien m, lumberjack bûcheron m
person:    traveller voyageur m, guard gardien m, pianist pianiste m, carpenter menuisier m
person:    gardener jardinier m, writer écrivain m, farmer fermier m, pirate pirate m
person:    prisoner prisonnier m
animal:    dog chien m, cat chat m, horse cheval m, cow vache f, goat chèvre f, pig cochon m
animal:    wolf loup m, elephant éléphant m, lion lion m, tortoise tortue f, hedgehog hérisson m
creature:  creature créature f
bird:      bird oiseau m, owl hibou m, eagle aigle m, swallow hirondelle f
food:      apple pomme f, orange orange f, pear poire f, cake gâteau m, egg œuf m, tomato tomate f
mass:      bread pain m, cheese fromage m, meat viande f, rice riz m, soup soupe f, honey miel m
drink:     water eau f, milk lait m
beverage:  coffee café m, wine vin m
reading:   book livre m, newspaper journal m, story histoire f, poem poème m, novel roman m
thing:     box boîte f, knife couteau m, lamp lampe f, flower fleur f, picture tableau m
thing:     basket panier m, umbrella parapluie m, bottle bouteille f, clock horloge f, toy jouet m
clothes:   hat chapeau m, dress robe f, shirt chemise f, coat manteau m, shoe chaussure f
vehicle:   car voiture f, bicycle vélo m, boat bateau m, plane avion m
building:  house maison f, school école f, hotel hôtel m, church église f, castle château m
building:  museum musée m, hospital hôpital m, market marché m, restaurant restaurant m
building:  station gare f, theatre théâtre m
land:      forest forêt f, garden jardin m, valley vallée f, field champ m, desert désert m
shore:     mountain montagne f, island île f, beach plage f
water:     river rivière f, lake lac m
furniture: table table f, chair chaise f, bed lit m, piano piano m
part:      door porte f, tree arbre m, oak chêne m, hand main f, finger doigt m, keyboard clavier m
part:      machine machine f, wall mur m, wedding mariage m
""", Noun)  # fmt: skip
NOUN = {noun.english: noun for noun in NOUNS}
KINDS: dict[str, list[Noun]] = {}
for _noun in NOUNS:
    KINDS.setdefault(_noun.kind, []).append(_noun)

# Words with several senses: english, french, gender, then the cues of the sense: people related to
# it, things that it is a part of, adjectives. A sentence with the word has cues of one sense only.
SENSES = _table("""
bank   rive          f fisherman/swimmer   river/lake     muddy/steep
bank   banque        f banker/lawyer       -              modern/Swiss
bat    chauve-souris f biologist           forest         hungry
bat    batte         f player/coach        -              wooden/broken
spring source        f shepherd            valley/mountain pure
spring ressort       m mechanic            machine/clock  rusty/broken
seal   phoque        m sailor/biologist    island         hungry/playful
seal   sceau         m king/queen          -              royal/golden
date   datte         f cook                market         sweet/ripe
date   date          f historian/teacher   wedding        important
trunk  tronc         m lumberjack          tree/oak       thick
trunk  malle         f traveller           -              empty
trunk  trompe        f -                   elephant       wrinkled
key    clé           f guard/prisoner      door/house/car golden
key    touche        f pianist             piano/keyboard broken
nail   ongle         m -                   finger/hand    painted
nail   clou          m carpenter           wall           rusty
match  match         m player/coach        -              exciting
match  allumette     f cook                box            burnt
palm   paume         f -                   hand           sweaty
palm   palmier       m gardener/traveller  beach/desert   tall
pen    stylo         m student/writer      -              expensive
pen    enclos        m farmer/shepherd     goat/pig       muddy
bark   écorce        f lumberjack          tree/oak       rough/thick
bark   aboiement     m -                   dog            loud
file   dossier       m lawyer/banker       -              important
file   lime          f prisoner/mechanic   -              rusty
ball   balle         f player/coach        -              round
ball   bal           m prince/princess     castle         royal
""", _sense)  # fmt: skip

# english, masculine, feminine, order, classes. `before`: it precedes the French noun, else it
# follows. English order: before, quality, colour, origin, material.
ADJECTIVES = _table("""
big          grand       grande       before   beast/building/land/furniture/thing/part
small        petit       petite       before   beast/food/thing/vehicle/building/land/water/part
beautiful    beau        belle        before   living/thing/clothes/building/nature/part
lovely       joli        jolie        before   bird/thing/clothes/building
young        jeune       jeune        before   person
old          vieux       vieille      before   person/legged/clothes/vehicle/building/reading
new          nouveau     nouvelle     before   person/clothes/vehicle/building/reading/thing
good         bon         bonne        before   food/mass/beverage/reading
bad          mauvais     mauvaise     before   food/mass/beverage/reading
long         long        longue       before   reading/clothes/water
happy        heureux     heureuse     quality  person
sad          triste      triste       quality  person/beast
tired        fatigué     fatiguée     quality  person/beast
famous       célèbre     célèbre      quality  person/reading/building
intelligent  intelligent intelligente quality  person/animal/creature
honest       honnête     honnête      quality  person
generous     généreux    généreuse    quality  person
brave        courageux   courageuse   quality  person
jealous      jaloux      jalouse      quality  person
shy          timide      timide       quality  person/animal/creature
fluffy       duveteux    duveteuse    quality  bird/creature
wild         sauvage     sauvage      quality  beast
dangerous    dangereux   dangereuse   quality  animal/creature/water
fast         rapide      rapide       quality  vehicle
heavy        lourd       lourde       quality  thing/furniture/reading
light        léger       légère       quality  thing/furniture/clothes
expensive    cher        chère        quality  thing/clothes/vehicle/food
delicious    délicieux   délicieuse   quality  food/mass/beverage
fresh        frais       fraîche      quality  food/mass
interesting  intéressant intéressante quality  reading/building
verdant      verdoyant   verdoyante   quality  land/shore
quiet        tranquille  tranquille   quality  land/shore/water/building
blue         bleu        bleue        colour   bird/creature/thing/clothes/vehicle
white        blanc       blanche      colour   beast/thing/clothes/vehicle/building
black        noir        noire        colour   beast/thing/clothes/vehicle
red          rouge       rouge        colour   thing/clothes/vehicle/food
green        vert        verte        colour   bird/creature/thing/clothes/vehicle
grey         gris        grise        colour   beast/clothes/vehicle
French       français    française    origin   person/mass/reading/vehicle
Italian      italien     italienne    origin   person/mass/reading/vehicle/clothes
Japanese     japonais    japonaise    origin   person/vehicle/reading
muddy        boueux      boueuse      quality  clothes
steep        escarpé     escarpée     quality  shore
modern       moderne     moderne      quality  building
Swiss        suisse      suisse       origin   person/clothes
hungry       affamé      affamée      quality  animal/person/bird
broken       cassé       cassée       quality  thing/furniture/vehicle
rusty        rouillé     rouillée     quality  vehicle
playful      joueur      joueuse      quality  animal
royal        royal       royale       quality  building
sweet        sucré       sucrée       quality  food/beverage
important    important   importante   quality  reading
thick        épais       épaisse      quality  reading
empty        vide        vide         quality  building
exciting     passionnant passionnante quality  reading
rough        rugueux     rugueuse     quality  part
loud         bruyant     bruyante     quality  animal
wooden       en~bois     en~bois      material furniture
pure pur pure quality -, golden doré dorée quality -, ripe mûr mûre quality -
wrinkled ridé ridée quality -, painted verni vernie quality -, burnt brûlé brûlée quality -
sweaty moite moite quality -, tall haut haute quality -, round rond ronde quality -
""", _adjective)  # fmt: skip
ADJECTIVE = {adjective.english: adjective for adjective in ADJECTIVES}
ADJECTIVES_OF = {kind: [a for a in ADJECTIVES if kind in a.kinds] for kind in KINDS}

# english, past, french, tense of the French past (passé composé with avoir or être, or imparfait),
# classes of subjects, complement, classes of objects. `-`: the past is spelt like the present.
VERBS = _table("""
eat      ate      manger     avoir     living        object food/mass
drink    drank    boire      avoir     person        object drink/beverage
buy      bought   acheter    avoir     person        object food/mass/goods/vehicle
sell     sold     vendre     avoir     person        object food/mass/goods/vehicle
read     -        lire       avoir     person        object reading
write    wrote    écrire     avoir     person        object reading
find     found    trouver    avoir     person        object goods
lose     lost     perdre     avoir     person        object goods
see      saw      voir       avoir     living        object living/vehicle/building/nature/part
look~for looked   chercher   imparfait person        object goods/animal/building/person
love     loved    aimer      imparfait person        object person/legged/food/mass/reading/country
visit    visited  visiter    avoir     person        object building/land/shore/country
roam     roamed   parcourir  imparfait legged        object land/shore
watch    watched  regarder   imparfait person/legged object living/shore/water
wear     wore     porter     imparfait person        object clothes
wash     washed   laver      avoir     person        object clothes/vehicle
follow   followed suivre     imparfait person/legged object person/legged
wait~for waited   attendre   imparfait person        object person
know     knew     connaître  imparfait person        object person/building/country
build    built    construire avoir     person        object building/vehicle/furniture
draw     drew     dessiner   avoir     person        object beast/building/nature/part
paint    painted  peindre    avoir     person        object beast/building/furniture/shore/water
choose   chose    choisir    avoir     person        object goods/vehicle
hide     hid      cacher     avoir     person        object thing/reading
admire   admired  admirer    imparfait person        object living/building/shore/water
clean    cleaned  nettoyer   avoir     person        object building/furniture/clothes
sleep    slept    dormir     imparfait living        where  -
sing     sang     chanter    imparfait person/bird   where  -
dance    danced   danser     imparfait person        where  -
work     worked   travailler imparfait person        where  -
live     lived    habiter    imparfait person        place  -
swim     swam     nager      imparfait person/legged water  -
run      ran      courir     imparfait person/legged where  -
cry      cried    pleurer    imparfait person        where  -
smile    smiled   sourire    imparfait person        where  -
fly      flew     voler      imparfait bird          where  -
arrive   arrived  arriver    être      person        at     -
leave    left     partir     être      person        none   -
fall     fell     tomber     être      person/legged where  -
stay     stayed   rester     être      person/legged place  -
go       went     aller      être      person        to     -
return   returned revenir    être      person        from   -
come     came     venir      être      person        from   -
give     gave     donner     avoir     person        give   goods/food
show     showed   montrer    avoir     person        give   goods
send     sent     envoyer    avoir     person        give   reading/thing
lend     lent     prêter     avoir     person        give   goods/vehicle
want~to  wanted   vouloir    imparfait person        modal  -
can      could    pouvoir    imparfait person        modal  -
play     played   jouer      imparfait person        play   -
""", _verb)  # fmt: skip
VERB = {verb.english: verb for verb in VERBS}
SPOKEN_VERBS = [VERB[word] for word in ("love", "see", "eat", "buy")]
NEUTRAL_VERBS = [VERB[word] for word in ("find", "look", "admire", "draw", "see", "choose")]
STATES = [VERB[word] for word in ("love", "know", "live")]
BE = Verb("be", "", "was", "être", "imparfait", frozenset(), "adjective", frozenset())

# infinitive: je, il, nous, vous, ils, participle. Regular -er verbs need no entry.
_IRREGULAR = {
    infinitive: forms
    for infinitive, *forms in _table("""
être suis est sommes êtes sont été, avoir ai a avons avez ont eu
acheter achète achète achetons achetez achètent acheté, aller vais va allons allez vont allé
attendre attends attend attendons attendez attendent attendu
boire bois boit buvons buvez boivent bu
choisir choisis choisit choisissons choisissez choisissent choisi
connaître connais connaît connaissons connaissez connaissent connu
construire construis construit construisons construisez construisent construit
courir cours court courons courez courent couru, dormir dors dort dormons dormez dorment dormi
écrire écris écrit écrivons écrivez écrivent écrit
envoyer envoie envoie envoyons envoyez envoient envoyé, lire lis lit lisons lisez lisent lu
nettoyer nettoie nettoie nettoyons nettoyez nettoient nettoyé
parcourir parcours parcourt parcourons parcourez parcourent parcouru
partir pars part partons partez partent parti, peindre peins peint peignons peignez peignent peint
perdre perds perd perdons perdez perdent perdu, pouvoir peux peut pouvons pouvez peuvent pu
revenir reviens revient revenons revenez reviennent revenu
sourire souris sourit sourions souriez sourient souri, suivre suis suit suivons suivez suivent suivi
vendre vends vend vendons vendez vendent vendu, venir viens vient venons venez viennent venu
voir vois voit voyons voyez voient vu, vouloir veux veut voulons voulez veulent voulu
""")
}

# English: masculine, feminine and plural French forms. `no` is *a* or *some* after a negation.
DETERMINERS = {
    word: forms
    for word, *forms in _table("""
the le la les, a un une -, some de~le de~la des, no de de de, this ce cette ces
my mon ma mes, his son sa ses, her son sa ses, our notre notre nos, your votre votre vos
their leur leur leurs, two - - deux, three - - trois, many - - beaucoup~de
""")
}
POSSESSIVES = ("my", "his", "her", "our", "your", "their")
NUMBERS = ("two", "three", "many")
# People and places that may have a possessive; things and animals of other classes all may.
OWNED = (
    "friend", "aunt", "uncle", "grandmother", "doctor", "teacher", "lawyer", "cook", "gardener",
    "dog", "cat", "horse", "cow", "goat", "pig", "tortoise",
    "house", "school", "garden", "hotel", "restaurant", "hand", "finger", "wedding",
)  # fmt: skip

NAMES = _table("""
f: Jane, Marie, Sophie, Alice, Emma
m: Paul, Pierre, Thomas, Luc, Louis
""")

# article: english french
COUNTRIES = _table("""
la:  Africa Afrique, France France, Italy Italie, Spain Espagne
le:  Japan Japon, Canada Canada, Brazil Brésil
les: the~United~States États-Unis
:    Paris Paris, London Londres, Rome Rome
""")

# classes of places: english french
PREPOSITIONS = _table("""
land/building:             in dans
shore:                     on sur
land/shore/water/building: near près~de
building:                  behind derrière, in~front~of devant
land/shore/water/building: far~from loin~de
""")

# tense of the verb: english french
TIMES = _table("""
any:     in~spring au~printemps, in~summer en~été, in~winter en~hiver, in~autumn en~automne
present: every~morning chaque~matin, every~evening chaque~soir, every~Monday chaque~lundi
present: every~Sunday chaque~dimanche, now maintenant
past:    yesterday hier, last~year la~année~dernière
""")
MONTHS = _table("""
January janvier, March mars, April avril, August août, September septembre, October octobre
""")
ADVERBS = _table("often souvent, always toujours, sometimes parfois, rarely rarement")
CONJUNCTIONS = _table("and et, but mais, because parce~que, when quand")

# French preposition after *jouer*: what is played, French article and noun
PLAYED = _table("""
de: the~piano le piano, the~guitar la guitare, the~violin le violon
à:  football le football, tennis le tennis, chess les échecs
""")

_ENGLISH_PLURALS = {
    "man": "men", "woman": "women", "fisherman": "fishermen", "wolf": "wolves", "knife": "knives",
}  # fmt: skip
_FRENCH_PLURALS = {
    "chauve-souris": "chauves-souris", "bal": "bals", "grand-mère": "grands-mères",
    "hibou": "hiboux",
}  # fmt: skip
_BEFORE_VOWEL = {"beau": "bel", "nouveau": "nouvel", "vieux": "vieil"}
# Words that begin with a consonant, although it is not heard: le hibou.
_ASPIRATED = ("hérisson", "hérissons", "hibou", "hiboux", "haut", "haute", "hauts", "hautes")

# Grammatical persons, in the order of the French conjugation tables: I, he or she, we, you, they.
PERSONS = ("je", "il", "nous", "vous", "ils")
_VOWELS = "aeiouhàâéèêîôûœAEIOUHÉ"


def starts_with_vowel(french: str) -> bool:
    """Return whether the word before it elides: a vowel or a mute h."""
    return french[0] in _VOWELS and french not in _ASPIRATED


def french_plural(word: str) -> str:
    """Return the plural of a noun or adjective.

    >>> french_plural("cheval"), french_plural("oiseau"), french_plural("en bois")
    ('chevaux', 'oiseaux', 'en bois')
    """
    if word in _FRENCH_PLURALS:
        return _FRENCH_PLURALS[word]
    if word[-1] in "sxz" or word.startswith("en "):
        return word
    if word.endswith("al"):
        return word[:-1] + "ux"
    return word + ("x" if word.endswith("eau") else "s")


def english_plural(word: str) -> str:
    """Return the plural of a noun, or the -s form of a verb."""
    if word in _ENGLISH_PLURALS:
        return _ENGLISH_PLURALS[word]
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
    return dict(zip(PERSONS, _IRREGULAR.get(infinitive, regular), strict=False))


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
    *_, form = _IRREGULAR.get(infinitive, [infinitive[:-2] + "é"])
    form += "e" if gender == "f" else ""
    return french_plural(form) if plural else form
