"""The words of a synthetic world: topics with their tags, and the parts of made-up titles."""

TOPICS: dict[str, tuple[str, ...]] = {
    line.split(":")[0]: tuple(line.split(":")[1].split())
    for line in """\
Astronomy: stars planets comets galaxies telescopes orbits
Baking: breads pastries cakes ovens doughs tarts
Cycling: bicycles climbs sprints wheels pelotons trails
Jazz: trumpets quartets ballads solos rhythms sessions
Gardening: roses orchards seeds hedges meadows greenhouses
Sailing: harbours anchors storms sails lighthouses tides
Chess: gambits endgames knights openings rooks tournaments
History: empires dynasties archives treaties ruins chronicles
Cooking: soups spices markets stews feasts kitchens
Robotics: machines sensors automata circuits drones androids
Mysteries: detectives clues alibis secrets suspects riddles
Mountains: summits glaciers ridges valleys avalanches shelters
Painting: portraits canvases murals frescoes palettes galleries
Football: goals derbies strikers stadiums penalties leagues
Poetry: sonnets verses elegies haikus odes rhymes
Railways: locomotives stations tunnels bridges signals journeys
Photography: portfolios lenses shadows exposures negatives horizons
Wildlife: wolves herons foxes otters eagles migrations
Fashion: fabrics gowns tailors runways patterns silks
Physics: particles waves quanta forces fields experiments
Theatre: tragedies comedies stages curtains monologues rehearsals
Travel: islands caravans deserts passports ferries borders
Architecture: towers arches cathedrals facades gardens plazas
Economics: bubbles markets currencies auctions guilds trades
Fantasy: dragons wizards kingdoms prophecies swords spells
Diving: reefs wrecks currents lagoons caves pearls
Opera: arias overtures divas duets choirs librettos
Medicine: remedies surgeons vaccines hospitals anatomies cures
Woodworking: joints chisels cabinets timbers benches violins
Space: rockets astronauts colonies satellites moons missions
Tea: leaves ceremonies gardens blends kettles estates
Crime: heists thieves verdicts informants prisons alibis
Ballet: swans pirouettes dancers slippers companies premieres
Climbing: ropes walls boulders ledges routes expeditions
Coffee: beans roasters brews cups plantations baristas
Comics: heroes villains panels capes sidekicks masks
Dogs: terriers retrievers shepherds puppies hounds trials
Electronics: amplifiers radios antennas transistors solders oscillators
Fishing: rivers trouts nets lures piers catches
Geology: volcanoes fossils minerals canyons crystals quakes
Horses: stallions stables jockeys foals saddles races
Insects: beetles bees butterflies hives moths crickets
Knitting: yarns sweaters needles stitches shawls blankets
Languages: alphabets grammars dialects idioms scripts dictionaries
Magic: illusions conjurers cards mirrors wands escapes
Myths: gods titans oracles labyrinths heroes underworlds
Oceans: whales trenches waves corals icebergs abysses
Philosophy: paradoxes dialogues skeptics virtues essays reasons
Pottery: kilns vases glazes clays bowls wheels
Puzzles: mazes ciphers crosswords labyrinths jigsaws tricks
Rock: guitars anthems drummers tours amplifiers encores
Romance: letters weddings promises strangers reunions vows
Running: marathons relays paces tracks milestones sprints
Sculpture: marbles bronzes statues busts workshops monuments
Skiing: slopes lifts powders slaloms lodges jumps
Spies: agents codes embassies defectors dossiers disguises
Tennis: volleys rallies courts serves champions upsets
Trees: forests oaks pines rings groves saplings
Vampires: castles coffins bats midnights curses bloodlines
Watches: gears springs dials chimes escapements heirlooms
Weather: hurricanes clouds droughts monsoons frosts forecasts
Westerns: sheriffs outlaws saloons stagecoaches ranches duels
Wine: vineyards cellars vintages barrels harvests corks
Yoga: breaths postures retreats mantras sunrises balances""".splitlines()
}

# fmt: off
ADJECTIVES = (
    "Silent", "Golden", "Hidden", "Last", "Wandering", "Crimson", "Broken", "Distant", "Electric", "Forgotten",
    "Gentle", "Hollow", "Iron", "Jade", "Lonely", "Midnight", "Northern", "Open", "Paper", "Quiet", "Restless",
    "Scarlet", "Tangled", "Uncertain", "Velvet", "Winter", "Amber", "Bright", "Careless", "Dancing", "Early",
    "Famous", "Glass", "Humble", "Invisible", "Laughing", "Modern", "Nameless", "Old", "Patient", "Rising", "Secret",
    "Tiny", "Unlikely", "Vanishing", "Wild", "Young", "Borrowed",
)

PLACES = (
    "Lisbon", "Kyoto", "Tromsø", "Marrakesh", "Valparaíso", "Tbilisi", "Ghent", "Hanoi", "Cork", "Samarkand",
    "Bergen", "Oaxaca", "Palermo", "Quito", "Riga", "Salvador", "Trieste", "Uppsala", "Varna", "Windhoek", "Yerevan",
    "Zanzibar", "Accra", "Bath", "Cádiz", "Dakar", "Essen", "Fez", "Galway", "Hobart", "Izmir", "Jaipur", "Kraków",
    "Lima", "Mumbai", "Nara", "Odense", "Porto", "Québec", "Rouen", "Seville", "Tartu", "Utrecht", "Vigo",
    "Wellington", "York", "Zadar", "Busan",
)
# fmt: on

AGE_GROUPS = ("under 18", "18-24", "25-34", "35-44", "45-54", "55 and over")
COUNTRIES = ("BR", "DE", "ES", "FR", "GB", "IN", "JP", "KR", "MX", "NG", "PL", "US")
DEVICES = ("phone", "desktop", "tablet", "tv")
