# SPDX-License-Identifier: Apache-2.0
"""The word lists of the demo model. Every entry was written down for this project; no outside list was used."""

# Plain words of the word lists. None is longer than six letters, and none is in another list of this file.
WORDS = """
acorn actor amber ankle apple april arch arrow attic aunt autumn badge baker bark barn basin beach beard berry bird
block bloom board boot brave bread brick bridge brush bush cabin cake calm camp canal candy canoe cape cave cedar
chalk chess chief clay cliff clock cloth clover coast cobra comet coral crane creek crow crown curve dance dawn deer
desk dingo dragon dream drift drum dust eagle earth easel elbow ember farm feast fence fiddle field finch flame flint
flood floor flute foam fog frog frost fruit garden gate giant glade glove goat goose grape grass grove guard hammer
hawk hazel heart hedge heron hive honey hoof horn horse house igloo ink iris iron jaguar jar jelly jewel jolly juice
kayak king kite knee koala lake lark lava lawn ledge lemon light lily linen lobby locket lotus lucky lunar mango maple
marsh melon metal mill mint mirror mist moose motor mouse music nest night north oasis ocean olive onion orbit orchid
otter owl panda peach pebble piano pilot pine poem polar pond poppy prince quiet quilt radar raft raven reef ribbon
rice ridge river road robin roof root rope sail salad salt sand satin shark sheep shell shore siren sky sled sleepy
smoke snail soap soft spark spoon stage steam stone storm straw sugar sunny swan sweet table tango thorn thumb tide
tiger toast tower trail train tree trout turtle uncle urban valve voyage warm water wave wax whale wheel wind wise
wolf wood yeast yodel young zebra zenith
""".split()

# The parts of the sentences.
NAMES = """Ada Anna Ben Bruno Carla Cleo Daniel Dora Emma Erik Felix Fiona Gina Hugo Ida Ivan Jonas Julia Karl Kira Leo
Lina Mara Milo Nina Noah Olga Oscar Paula Pedro Quinn Rosa Ruth Samuel Sonja Tara Theo Ulla Vera Victor Wanda Yara Zoe""".split()
PLACES = """Berlin Bogota Cairo Dakar Delhi Dublin Geneva Hanoi Havana Jaipur Kyoto Lagos Lima Lisbon Malta Naples Osaka
Oslo Paris Prague Quito Rome Seoul Tunis Turin Vienna Warsaw Zagreb""".split()
VERBS = "bought sold found lost made drew fixed washed packed stored sent kept moved hid saved took".split()
COLORS = "red blue green black white yellow brown pink gray purple orange silver".split()
ITEMS = """lamps cups books chairs boxes hats coins plates toys bags rings pens shirts phones bowls masks keys maps vases
plants knives bikes belts dolls""".split()
ROOMS = "kitchen hall garage studio office library yard shop".split()

UNITS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
eighteen nineteen""".split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
