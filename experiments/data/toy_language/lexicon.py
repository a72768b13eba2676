"""Lexicon: tables of words, and the nouns, adjectives, verbs and senses that are read from them.

Classes of nouns exclude nonsense such as tables that eat: a verb lists the classes of its subjects
and of its objects, an adjective those of its nouns. In a table `~` joins the words of an expression.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

# Names for several classes at once.
GROUPS = {
    "living": ("person", "animal", "bird", "creature"), "beast": ("animal", "bird", "creature"),
    "legged": ("animal", "creature"), "goods": ("thing", "clothes", "reading"),
    "nature": ("land", "shore", "water"),
}  # fmt: skip

# class: english french gender
_NOUNS = """
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
"""

# english, masculine, feminine, order, classes. `before`: it precedes the French noun, else it
# follows. English order: before, quality, colour, origin, material.
_ADJECTIVES = """
big          grand       grande       before   beast building land furniture thing part
small        petit       petite       before   beast food thing vehicle building land water part
beautiful    beau        belle        before   living thing clothes building nature part
lovely       joli        jolie        before   bird thing clothes building
young        jeune       jeune        before   person
old          vieux       vieille      before   person legged clothes vehicle building reading
new          nouveau     nouvelle     before   person clothes vehicle building reading thing
good         bon         bonne        before   food mass beverage reading
bad          mauvais     mauvaise     before   food mass beverage reading
long         long        longue       before   reading clothes water
happy        heureux     heureuse     quality  person
sad          triste      triste       quality  person beast
tired        fatigué     fatiguée     quality  person beast
famous       célèbre     célèbre      quality  person reading building
intelligent  intelligent intelligente quality  person animal creature
honest       honnête     honnête      quality  person
generous     généreux    généreuse    quality  person
brave        courageux   courageuse   quality  person
jealous      jaloux      jalouse      quality  person
shy          timide      timide       quality  person animal creature
fluffy       duveteux    duveteuse    quality  bird creature
wild         sauvage     sauvage      quality  beast
dangerous    dangereux   dangereuse   quality  animal creature water
fast         rapide      rapide       quality  vehicle
heavy        lourd       lourde       quality  thing furniture reading
light        léger       légère       quality  thing furniture clothes
expensive    cher        chère        quality  thing clothes vehicle food
delicious    délicieux   délicieuse   quality  food mass beverage
fresh        frais       fraîche      quality  food mass
interesting  intéressant intéressante quality  reading building
verdant      verdoyant   verdoyante   quality  land shore
quiet        tranquille  tranquille   quality  land shore water building
blue         bleu        bleue        colour   bird creature thing clothes vehicle
white        blanc       blanche      colour   beast thing clothes vehicle building
black        noir        noire        colour   beast thing clothes vehicle
red          rouge       rouge        colour   thing clothes vehicle food
green        vert        verte        colour   bird creature thing clothes vehicle
grey         gris        grise        colour   beast clothes vehicle
French       français    française    origin   person mass reading vehicle
Italian      italien     italienne    origin   person mass reading vehicle clothes
Japanese     japonais    japonaise    origin   person vehicle reading
muddy        boueux      boueuse      quality  clothes
steep        escarpé     escarpée     quality  shore
modern       moderne     moderne      quality  building
Swiss        suisse      suisse       origin   person clothes
hungry       affamé      affamée      quality  animal person bird
broken       cassé       cassée       quality  thing furniture vehicle
pure         pur         pure         quality
rusty        rouillé     rouillée     quality  vehicle
playful      joueur      joueuse      quality  animal
royal        royal       royale       quality  building
golden       doré        dorée        quality
sweet        sucré       sucrée       quality  food beverage
ripe         mûr         mûre         quality
important    important   importante   quality  reading
thick        épais       épaisse      quality  reading
empty        vide        vide         quality  building
wrinkled     ridé        ridée        quality
painted      verni       vernie       quality
exciting     passionnant passionnante quality  reading
burnt        brûlé       brûlée       quality
sweaty       moite       moite        quality
tall         haut        haute        quality
rough        rugueux     rugueuse     quality  part
loud         bruyant     bruyante     quality  animal
round        rond        ronde        quality
wooden       en~bois     en~bois      material furniture
"""

# Words with several senses: english, french, gender, then the cues of the sense: people related to
# it, things that it is a part of, adjectives. A sentence with the word has cues of one sense only.
_SENSES = """
bank    rive          f | fisherman swimmer  | river lake       | muddy steep
bank    banque        f | banker lawyer      |                  | modern Swiss
bat     chauve-souris f | biologist          | forest           | hungry
bat     batte         f | player coach       |                  | wooden broken
spring  source        f | shepherd           | valley mountain  | pure
spring  ressort       m | mechanic           | machine clock    | rusty broken
seal    phoque        m | sailor biologist   | island           | hungry playful
seal    sceau         m | king queen         |                  | royal golden
date    datte         f | cook               | market           | sweet ripe
date    date          f | historian teacher  | wedding          | important
trunk   tronc         m | lumberjack         | tree oak         | thick
trunk   malle         f | traveller          |                  | empty
trunk   trompe        f |                    | elephant         | wrinkled
key     clé           f | guard prisoner     | door house car   | golden
key     touche        f | pianist            | piano keyboard   | broken
nail    ongle         m |                    | finger hand      | painted
nail    clou          m | carpenter          | wall             | rusty
match   match         m | player coach       |                  | exciting
match   allumette     f | cook               | box              | burnt
palm    paume         f |                    | hand             | sweaty
palm    palmier       m | gardener traveller | beach desert     | tall
pen     stylo         m | student writer     |                  | expensive
pen     enclos        m | farmer shepherd    | goat pig         | muddy
bark    écorce        f | lumberjack         | tree oak         | rough thick
bark    aboiement     m |                    | dog              | loud
file    dossier       m | lawyer banker      |                  | important
file    lime          f | prisoner mechanic  |                  | rusty
ball    balle         f | player coach       |                  | round
ball    bal           m | prince princess    | castle           | royal
"""

# english, past, french, tense of the French past (passé composé with avoir or être, or imparfait),
# classes of subjects, complement, classes of objects. `-`: the past is spelt like the present.
_VERBS = """
eat      ate      manger     avoir     living         object    food,mass
drink    drank    boire      avoir     person         object    drink,beverage
buy      bought   acheter    avoir     person         object    food,mass,goods,vehicle
sell     sold     vendre     avoir     person         object    food,mass,goods,vehicle
read     -        lire       avoir     person         object    reading
write    wrote    écrire     avoir     person         object    reading
find     found    trouver    avoir     person         object    goods
lose     lost     perdre     avoir     person         object    goods
see      saw      voir       avoir     living         object    living,vehicle,building,nature,part
look~for looked   chercher   imparfait person         object    goods,animal,building,person
love     loved    aimer      imparfait person         object    person,legged,food,mass,reading,country
visit    visited  visiter    avoir     person         object    building,land,shore,country
roam     roamed   parcourir  imparfait legged         object    land,shore
watch    watched  regarder   imparfait person,legged  object    living,shore,water
wear     wore     porter     imparfait person         object    clothes
wash     washed   laver      avoir     person         object    clothes,vehicle
follow   followed suivre     imparfait person,legged  object    person,legged
wait~for waited   attendre   imparfait person         object    person
know     knew     connaître  imparfait person         object    person,building,country
build    built    construire avoir     person         object    building,vehicle,furniture
draw     drew     dessiner   avoir     person         object    beast,building,nature,part
paint    painted  peindre    avoir     person         object    beast,building,furniture,shore,water
choose   chose    choisir    avoir     person         object    goods,vehicle
hide     hid      cacher     avoir     person         object    thing,reading
admire   admired  admirer    imparfait person         object    living,building,shore,water
clean    cleaned  nettoyer   avoir     person         object    building,furniture,clothes
sleep    slept    dormir     imparfait living         somewhere
sing     sang     chanter    imparfait person,bird    somewhere
dance    danced   danser     imparfait person         somewhere
work     worked   travailler imparfait person         somewhere
live     lived    habiter    imparfait person         place
swim     swam     nager      imparfait person,legged  water
run      ran      courir     imparfait person,legged  somewhere
cry      cried    pleurer    imparfait person         somewhere
smile    smiled   sourire    imparfait person         somewhere
fly      flew     voler      imparfait bird           somewhere
arrive   arrived  arriver    être      person         at
leave    left     partir     être      person         none
fall     fell     tomber     être      person,legged  somewhere
stay     stayed   rester     être      person,legged  place
go       went     aller      être      person         to
return   returned revenir    être      person         from
come     came     venir      être      person         from
give     gave     donner     avoir     person         give      goods,food
show     showed   montrer    avoir     person         give      goods
send     sent     envoyer    avoir     person         give      reading,thing
lend     lent     prêter     avoir     person         give      goods,vehicle
want~to  wanted   vouloir    imparfait person         modal
can      could    pouvoir    imparfait person         modal
play     played   jouer      imparfait person         play
"""

# infinitive, je, il, nous, vous, ils, participle. Regular -er verbs need no entry.
_IRREGULAR = """
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
"""

# article: english french
_COUNTRIES = """
la:  Africa Afrique, France France, Italy Italie, Spain Espagne
le:  Japan Japon, Canada Canada, Brazil Brésil
les: the~United~States États-Unis
-:   Paris Paris, London Londres, Rome Rome
"""

# tense of the verb: english french
_TIMES = """
any:     in~spring au~printemps, in~summer en~été, in~winter en~hiver, in~autumn en~automne
present: every~morning chaque~matin, every~evening chaque~soir, every~Monday chaque~lundi
present: every~Sunday chaque~dimanche, now maintenant
past:    yesterday hier, last~year la~année~dernière
"""

# classes of places: english french
_PREPOSITIONS = """
land,building:             in dans
shore:                     on sur
land,shore,water,building: near près~de
building:                  behind derrière, in~front~of devant
land,shore,water,building: far~from loin~de
"""

# French preposition after *jouer*: what is played, French article and noun
_PLAYED = """
de: the~piano le piano, the~guitar la guitare, the~violin le violon
à:  football le football, tennis le tennis, chess les échecs
"""

# English: masculine, feminine and plural French forms. `no` is *a* or *some* after a negation.
_DETERMINERS = """
the le la les, a un une -, some de~le de~la des, no de de de, this ce cette ces
my mon ma mes, his son sa ses, her son sa ses, our notre notre nos, your votre votre vos
their leur leur leurs, two - - deux, three - - trois, many - - beaucoup~de
"""
POSSESSIVES = ("my", "his", "her", "our", "your", "their")
NUMBERS = ("two", "three", "many")

NAMES = (
    ("Jane", "f"), ("Marie", "f"), ("Sophie", "f"), ("Alice", "f"), ("Emma", "f"),
    ("Paul", "m"), ("Pierre", "m"), ("Thomas", "m"), ("Luc", "m"), ("Louis", "m"),
)  # fmt: skip
MONTHS = (
    ("January", "janvier"), ("March", "mars"), ("April", "avril"), ("August", "août"),
    ("September", "septembre"), ("October", "octobre"),
)  # fmt: skip
ADVERBS = (
    ("often", "souvent"), ("always", "toujours"), ("sometimes", "parfois"), ("rarely", "rarement"),
)  # fmt: skip
CONJUNCTIONS = (("and", "et"), ("but", "mais"), ("because", "parce que"), ("when", "quand"))

# People and places that may have a possessive; things and animals of other classes all may.
OWNED = (
    "friend", "aunt", "uncle", "grandmother", "doctor", "teacher", "lawyer", "cook", "gardener",
    "dog", "cat", "horse", "cow", "goat", "pig", "tortoise",
    "house", "school", "garden", "hotel", "restaurant", "hand", "finger", "wedding",
)  # fmt: skip

ENGLISH_PLURALS = {
    "man": "men", "woman": "women", "fisherman": "fishermen", "wolf": "wolves", "knife": "knives",
}  # fmt: skip
FRENCH_PLURALS = {"chauve-souris": "chauves-souris", "bal": "bals", "grand-mère": "grands-mères"}
ASPIRATED = ("hérisson", "hérissons", "hibou", "hiboux", "haut", "haute", "hauts", "hautes")


class Sense(NamedTuple):
    """Cues of one sense of a polysemous noun: words that occur with none of its other senses."""

    owners: tuple[str, ...]
    wholes: tuple[str, ...]
    adjectives: tuple[str, ...]

    @property
    def cues(self) -> set[str]:
        """All cues of this sense."""
        return {*self.owners, *self.wholes, *self.adjectives}


class Noun(NamedTuple):
    """A noun, or one sense of a polysemous noun."""

    english: str
    french: str
    gender: str
    kind: str
    sense: Sense | None = None


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


def _rows(table: str) -> list[list[str]]:
    """Return the cells of each line."""
    lines = table.strip().splitlines()
    return [[cell.replace("~", " ") for cell in line.split()] for line in lines]


def _groups(table: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each entry of a table of groups, with the head of its group.

    >>> [*_groups("food: apple pomme f, pear poire f")]
    [('food', ['apple', 'pomme', 'f']), ('food', ['pear', 'poire', 'f'])]
    """
    for line in table.strip().splitlines():
        head, _, entries = line.rpartition(":")
        for entry in entries.split(","):
            yield head, *_rows(entry)


def _kinds(names: Iterable[str]) -> frozenset[str]:
    return frozenset(kind for name in names for kind in GROUPS.get(name, (name,)))


def _sense(line: str) -> Noun:
    word, *cues = (tuple(cell.split()) for cell in line.split("|"))
    return Noun(*word, kind="polysemous", sense=Sense(*cues))


def _verb(english: str, past: str, french: str, tense: str, subjects: str, complement: str,
          objects: str = "") -> Verb:  # fmt: skip
    english, _, particle = english.partition(" ")
    return Verb(english, particle, past, french, tense, _kinds(subjects.split(",")), complement,
                _kinds(objects.split(",") if objects else ()))  # fmt: skip


NOUNS = tuple(Noun(*words, kind) for kind, words in _groups(_NOUNS))
NOUN = {noun.english: noun for noun in NOUNS}
KINDS = {
    kind: [n for n in NOUNS if n.kind == kind] for kind in dict.fromkeys(n.kind for n in NOUNS)
}
SENSES = tuple(map(_sense, _SENSES.strip().splitlines()))

ADJECTIVES = tuple(Adjective(*row[:4], _kinds(row[4:])) for row in _rows(_ADJECTIVES))
ADJECTIVE = {adjective.english: adjective for adjective in ADJECTIVES}
ADJECTIVES_OF = {kind: [a for a in ADJECTIVES if kind in a.kinds] for kind in KINDS}

VERBS = tuple(_verb(*row) for row in _rows(_VERBS))
VERB = {verb.english: verb for verb in VERBS}
SPOKEN_VERBS = tuple(VERB[word] for word in ("love", "see", "eat", "buy"))
NEUTRAL_VERBS = tuple(VERB[word] for word in ("find", "look", "admire", "draw", "see", "choose"))
STATES = tuple(VERB[word] for word in ("love", "know", "live"))
BE = Verb("be", "", "was", "être", "imparfait", frozenset(), "adjective", frozenset())
IRREGULAR = {infinitive: forms for _, (infinitive, *forms) in _groups(_IRREGULAR)}

COUNTRIES = tuple((*names, article.strip("-")) for article, names in _groups(_COUNTRIES))
TIMES = tuple((*words, tense) for tense, words in _groups(_TIMES))
PREPOSITIONS = tuple((*words, kinds.split(",")) for kinds, words in _groups(_PREPOSITIONS))
PLAYED = tuple((*words, preposition) for preposition, words in _groups(_PLAYED))
DETERMINERS = {word: forms for _, (word, *forms) in _groups(_DETERMINERS)}
