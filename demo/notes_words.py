# SPDX-License-Identifier: Apache-2.0
"""The word lists of the second demo model. Every entry was written down for this project; no outside list was used."""

# Nobody comes twice in a document, and the longest has 72 notes.
PEOPLE = """Ada Alma Anna Ben Berta Bruno Carla Carl Cleo Clara Daniel Dora Doris Edgar Emma Elsa Erik Felix Fiona Flora
Frank Gina Greta Gustav Hanna Hugo Helga Ida Ivan Irma Jonas Julia Jakob Karl Kira Klara Konrad Leo Lina Lukas Mara Milo
Marta Max Nina Noah Nora Nils Olga Oscar Otto Paula Pedro Peter Petra Quinn Rosa Ruth Ralf Rita Samuel Sonja Sara Simon
Stella Tara Theo Tom Thea Ulla Udo Ursula Vera Victor Viola Vito Wanda Walter Willa Xenia Yara Yuri Zoe Zora""".split()
THINGS = """lamps cups books chairs boxes hats coins plates toys bags rings pens shirts phones bowls masks keys maps vases
plants knives bikes belts dolls ropes jars gloves scarves tables lights drums kites""".split()
COLORS = "red blue green black white yellow brown pink gray purple orange silver".split()
TOWNS = """Berlin Bogota Cairo Dakar Delhi Dublin Geneva Hanoi Havana Jaipur Kyoto Lagos Lima Lisbon Malta Naples Osaka
Oslo Paris Prague Quito Rome Seoul Tunis""".split()
MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
LONGEST_MONTH = 30
NUMBERS = "zero one two three four five six seven eight nine".split()
