"""Words of the language, one per line, as plain data for `entries`.

Word classes exclude nonsense such as tables that eat: a verb lists the classes of its subjects and
of its objects, an adjective those of its nouns.
"""

# Names for several classes at once.
GROUPS = {
    "living": ("person", "animal", "bird", "creature"), "beast": ("animal", "bird", "creature"),
    "legged": ("animal", "creature"), "goods": ("thing", "clothes", "reading"),
    "nature": ("land", "shore", "water"),
}  # fmt: skip

# english, french, gender, class
NOUNS = """
boy          garçon       m person
girl         fille        f person
man          homme        m person
woman        femme        f person
king         roi          m person
queen        reine        f person
prince       prince       m person
princess     princesse    f person
friend       ami          m person
aunt         tante        f person
uncle        oncle        m person
grandmother  grand-mère   f person
nurse        infirmière   f person
actress      actrice      f person
doctor       médecin      m person
teacher      professeur   m person
student      étudiant     m person
engineer     ingénieur    m person
lawyer       avocat       m person
banker       banquier     m person
fisherman    pêcheur      m person
swimmer      nageur       m person
player       joueur       m person
coach        entraîneur   m person
biologist    biologiste   m person
shepherd     berger       m person
mechanic     mécanicien   m person
sailor       marin        m person
cook         cuisinier    m person
historian    historien    m person
lumberjack   bûcheron     m person
traveller    voyageur     m person
guard        gardien      m person
pianist      pianiste     m person
carpenter    menuisier    m person
gardener     jardinier    m person
writer       écrivain     m person
farmer       fermier      m person
pirate       pirate       m person
prisoner     prisonnier   m person

dog          chien        m animal
cat          chat         m animal
horse        cheval       m animal
cow          vache        f animal
goat         chèvre       f animal
pig          cochon       m animal
wolf         loup         m animal
elephant     éléphant     m animal
lion         lion         m animal
tortoise     tortue       f animal
creature     créature     f creature
hedgehog     hérisson     m animal
bird         oiseau       m bird
owl          hibou        m bird
eagle        aigle        m bird
swallow      hirondelle   f bird

apple        pomme        f food
orange       orange       f food
pear         poire        f food
cake         gâteau       m food
egg          œuf          m food
tomato       tomate       f food
bread        pain         m mass
cheese       fromage      m mass
meat         viande       f mass
rice         riz          m mass
soup         soupe        f mass
honey        miel         m mass
water        eau          f drink
milk         lait         m drink
coffee       café         m beverage
wine         vin          m beverage

book         livre        m reading
newspaper    journal      m reading
story        histoire     f reading
poem         poème        m reading
novel        roman        m reading

box          boîte        f thing
knife        couteau      m thing
lamp         lampe        f thing
flower       fleur        f thing
picture      tableau      m thing
basket       panier       m thing
umbrella     parapluie    m thing
bottle       bouteille    f thing
clock        horloge      f thing
toy          jouet        m thing

hat          chapeau      m clothes
dress        robe         f clothes
shirt        chemise      f clothes
coat         manteau      m clothes
shoe         chaussure    f clothes

car          voiture      f vehicle
bicycle      vélo         m vehicle
boat         bateau       m vehicle
plane        avion        m vehicle

house        maison       f building
school       école        f building
hotel        hôtel        m building
church       église       f building
castle       château      m building
museum       musée        m building
hospital     hôpital      m building
market       marché       m building
restaurant   restaurant   m building
station      gare         f building
theatre      théâtre      m building

forest       forêt        f land
mountain     montagne     f shore
river        rivière      f water
lake         lac          m water
garden       jardin       m land
valley       vallée       f land
island       île          f shore
field        champ        m land
beach        plage        f shore
desert       désert       m land

table        table        f furniture
chair        chaise       f furniture
bed          lit          m furniture
piano        piano        m furniture
door         porte        f part

tree         arbre        m part
oak          chêne        m part
hand         main         f part
finger       doigt        m part
keyboard     clavier      m part
machine      machine      f part
wall         mur          m part
wedding      mariage      m part
"""

# english, masculine, feminine, order, classes. `before`: it precedes the French noun, else it
# follows. English order: before, quality, colour, origin, material.
ADJECTIVES = """
big          grand        grande       before   beast building land furniture thing part
small        petit        petite       before   beast food thing vehicle building land water part
beautiful    beau         belle        before   living thing clothes building nature part
lovely       joli         jolie        before   bird thing clothes building
young        jeune        jeune        before   person
old          vieux        vieille      before   person legged clothes vehicle building reading
new          nouveau      nouvelle     before   person clothes vehicle building reading thing
good         bon          bonne        before   food mass beverage reading
bad          mauvais      mauvaise     before   food mass beverage reading
long         long         longue       before   reading clothes water

happy        heureux      heureuse     quality  person
sad          triste       triste       quality  person beast
tired        fatigué      fatiguée     quality  person beast
famous       célèbre      célèbre      quality  person reading building
intelligent  intelligent  intelligente quality  person animal creature
honest       honnête      honnête      quality  person
generous     généreux     généreuse    quality  person
brave        courageux    courageuse   quality  person
jealous      jaloux       jalouse      quality  person
shy          timide       timide       quality  person animal creature
fluffy       duveteux     duveteuse    quality  bird creature
wild         sauvage      sauvage      quality  beast
dangerous    dangereux    dangereuse   quality  animal creature water
fast         rapide       rapide       quality  vehicle
heavy        lourd        lourde       quality  thing furniture reading
light        léger        légère       quality  thing furniture clothes
expensive    cher         chère        quality  thing clothes vehicle food
delicious    délicieux    délicieuse   quality  food mass beverage
fresh        frais        fraîche      quality  food mass
interesting  intéressant  intéressante quality  reading building
verdant      verdoyant    verdoyante   quality  land shore
quiet        tranquille   tranquille   quality  land shore water building

blue         bleu         bleue        colour   bird creature thing clothes vehicle
white        blanc        blanche      colour   beast thing clothes vehicle building
black        noir         noire        colour   beast thing clothes vehicle
red          rouge        rouge        colour   thing clothes vehicle food
green        vert         verte        colour   bird creature thing clothes vehicle
grey         gris         grise        colour   beast clothes vehicle

French       français     française    origin   person mass reading vehicle
Italian      italien      italienne    origin   person mass reading vehicle clothes
Japanese     japonais     japonaise    origin   person vehicle reading

muddy        boueux       boueuse      quality  clothes
steep        escarpé      escarpée     quality  shore
modern       moderne      moderne      quality  building
Swiss        suisse       suisse       origin   person clothes
hungry       affamé       affamée      quality  animal person bird
broken       cassé        cassée       quality  thing furniture vehicle
pure         pur          pure         quality
rusty        rouillé      rouillée     quality  vehicle
playful      joueur       joueuse      quality  animal
royal        royal        royale       quality  building
golden       doré         dorée        quality
sweet        sucré        sucrée       quality  food beverage
ripe         mûr          mûre         quality
important    important    importante   quality  reading
thick        épais        épaisse      quality  reading
empty        vide         vide         quality  building
wrinkled     ridé         ridée        quality
painted      verni        vernie       quality
exciting     passionnant  passionnante quality  reading
burnt        brûlé        brûlée       quality
sweaty       moite        moite        quality
tall         haut         haute        quality
rough        rugueux      rugueuse     quality  part
loud         bruyant      bruyante     quality  animal
round        rond         ronde        quality
wooden       en~bois      en~bois      material furniture
"""

# english, french, gender, then the cues of this sense: people related to it, things that it is a
# part of, adjectives. A sentence with the word contains cues of one sense only.
SENSES = """
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

# english, past, french, past tense, subjects, objects. The French past of a verb is fixed: passé
# composé with avoir or être, or imparfait. A past of `-` would be spelt like the present.
VERBS = """
eat       ate        manger     avoir     living         food,mass
drink     drank      boire      avoir     person         drink,beverage
buy       bought     acheter    avoir     person         food,mass,goods,vehicle
sell      sold       vendre     avoir     person         food,mass,goods,vehicle
read      -          lire       avoir     person         reading
write     wrote      écrire     avoir     person         reading
find      found      trouver    avoir     person         goods
lose      lost       perdre     avoir     person         goods
see       saw        voir       avoir     living         living,vehicle,building,nature,part
look_for  looked_for chercher   imparfait person         goods,animal,building,person
love      loved      aimer      imparfait person         person,legged,food,mass,reading,country
visit     visited    visiter    avoir     person         building,land,shore,country
roam      roamed     parcourir  imparfait legged         land,shore
watch     watched    regarder   imparfait person,legged  living,shore,water
wear      wore       porter     imparfait person         clothes
wash      washed     laver      avoir     person         clothes,vehicle
follow    followed   suivre     imparfait person,legged  person,legged
wait_for  waited_for attendre   imparfait person         person
know      knew       connaître  imparfait person         person,building,country
build     built      construire avoir     person         building,vehicle,furniture
draw      drew       dessiner   avoir     person         beast,building,nature,part
paint     painted    peindre    avoir     person         beast,building,furniture,shore,water
choose    chose      choisir    avoir     person         goods,vehicle
hide      hid        cacher     avoir     person         thing,reading
admire    admired    admirer    imparfait person         living,building,shore,water
clean     cleaned    nettoyer   avoir     person         building,furniture,clothes
sleep     slept      dormir     imparfait living         -
sing      sang       chanter    imparfait person,bird    -
dance     danced     danser     imparfait person         -
work      worked     travailler imparfait person         -
live      lived      habiter    imparfait person         place
swim      swam       nager      imparfait person,legged  water
run       ran        courir     imparfait person,legged  -
cry       cried      pleurer    imparfait person         -
smile     smiled     sourire    imparfait person         -
fly       flew       voler      imparfait bird           -
arrive    arrived    arriver    être      person         at
leave     left       partir     être      person         alone
fall      fell       tomber     être      person,legged  -
stay      stayed     rester     être      person,legged  place
go        went       aller      être      person         to
return    returned   revenir    être      person         from
come      came       venir      être      person         from
give      gave       donner     avoir     person         give:goods,food
show      showed     montrer    avoir     person         give:goods
send      sent       envoyer    avoir     person         give:reading,thing
lend      lent       prêter     avoir     person         give:goods,vehicle
want_to   wanted_to  vouloir    imparfait person         modal
can       could      pouvoir    imparfait person         modal
play      played     jouer      imparfait person         play
"""

# Feelings and states: without *often* and *can*; their objects take *the*, not *some*.
STATES = ("love", "know", "live")

# Verbs that fit every sense of every polysemous word.
# Verbs with I, we and you in the present. With these persons, other verbs are in the passé composé
# or after *want to* and *can*, so that every verb form in the corpus is frequent.
SPOKEN_VERBS = ("love", "see", "eat", "buy", "want_to", "can")

# People and places that may have a possessive; things and animals all may.
OWNED = (
    "friend", "aunt", "uncle", "grandmother", "doctor", "teacher", "lawyer", "cook", "gardener",
    "dog", "cat", "horse", "cow", "goat", "pig", "tortoise",
    "house", "school", "garden", "hotel", "restaurant", "hand", "finger", "wedding",
)  # fmt: skip

NEUTRAL_VERBS = ("find", "look_for", "admire", "draw", "see", "choose")

# infinitive, je, il, nous, vous, ils, participle. Regular -er verbs need no line.
IRREGULAR = """
être        suis      est       sommes      êtes        sont        été
avoir       ai        a         avons       avez        ont         eu
acheter     achète    achète    achetons    achetez     achètent    acheté
aller       vais      va        allons      allez       vont        allé
attendre    attends   attend    attendons   attendez    attendent   attendu
boire       bois      boit      buvons      buvez       boivent     bu
choisir     choisis   choisit   choisissons choisissez  choisissent choisi
connaître   connais   connaît   connaissons connaissez  connaissent connu
construire  construis construit construisons construisez construisent construit
courir      cours     court     courons     courez      courent     couru
dormir      dors      dort      dormons     dormez      dorment     dormi
écrire      écris     écrit     écrivons    écrivez     écrivent    écrit
envoyer     envoie    envoie    envoyons    envoyez     envoient    envoyé
lire        lis       lit       lisons      lisez       lisent      lu
nettoyer    nettoie   nettoie   nettoyons   nettoyez    nettoient   nettoyé
parcourir   parcours  parcourt  parcourons  parcourez   parcourent  parcouru
partir      pars      part      partons     partez      partent     parti
peindre     peins     peint     peignons    peignez     peignent    peint
perdre      perds     perd      perdons     perdez      perdent     perdu
pouvoir     peux      peut      pouvons     pouvez      peuvent     pu
revenir     reviens   revient   revenons    revenez     reviennent  revenu
sourire     souris    sourit    sourions    souriez     sourient    souri
suivre      suis      suit      suivons     suivez      suivent     suivi
vendre      vends     vend      vendons     vendez      vendent     vendu
venir       viens     vient     venons      venez       viennent    venu
voir        vois      voit      voyons      voyez       voient      vu
vouloir     veux      veut      voulons     voulez      veulent     voulu
"""

# english, french, gender
NAMES = """
Jane   Jane   f
Marie  Marie  f
Sophie Sophie f
Alice  Alice  f
Emma   Emma   f
Paul   Paul   m
Pierre Pierre m
Thomas Thomas m
Luc    Luc    m
Louis  Louis  m
"""

# english, french, article, "in" or "to" the place, "from" the place.
COUNTRIES = """
Africa             Afrique    la   en  de
France             France     la   en  de
Italy              Italie     la   en  de
Spain              Espagne    la   en  de
Japan              Japon      le   à   de
Canada             Canada     le   à   de
Brazil             Brésil     le   à   de
the_United_States  États-Unis les  à   de
Paris              Paris      -    à   de
London             Londres    -    à   de
Rome               Rome       -    à   de
"""

MONTHS = """
January   janvier
March     mars
April     avril
August    août
September septembre
October   octobre
"""

# english, french, tense it goes with. `~` joins the words of one expression.
TIMES = """
in~spring      au~printemps    any
in~summer      en~été          any
in~winter      en~hiver        any
in~autumn      en~automne      any
every~morning  chaque~matin    present
every~evening  chaque~soir     present
every~Monday   chaque~lundi    present
every~Sunday   chaque~dimanche present
now            maintenant      present
yesterday      hier            past
last~year      la~année~dernière past
"""

# english, french: before the verb in English, after it in French
ADVERBS = """
often     souvent
always    toujours
sometimes parfois
rarely    rarement
"""

# english, french, the classes of place it goes with
PREPOSITIONS = """
in           dans      land building
on           sur       shore
near         près~de   land shore water building
behind       derrière  building
in~front~of  devant    building
far~from     loin~de   land shore water building
"""

# english, french: what is played, and the French preposition
PLAYED = """
the~piano   le~piano    de
the~guitar  la~guitare  de
the~violin  le~violon   de
football    le~football à
tennis      le~tennis   à
chess       les~échecs  à
"""

ENGLISH_PLURALS = {
    "man": "men", "woman": "women", "fisherman": "fishermen", "wolf": "wolves", "knife": "knives",
}  # fmt: skip
FRENCH_PLURALS = {"chauve-souris": "chauves-souris", "bal": "bals", "grand-mère": "grands-mères"}
BEFORE_VOWEL = {"beau": "bel", "nouveau": "nouvel", "vieux": "vieil"}
ASPIRATED = ("hérisson", "hibou", "haut", "haute", "hauts", "hautes", "hérissons", "hiboux")
