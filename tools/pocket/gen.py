#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the conversations that the pocket model is trained on, one JSON object per line, gzip-compressed.

A dictionary (definitions, senses, examples, synonyms, classes), recall over a long context, names, small arithmetic,
spelling, capitals, small talk, tool calls and short stories. Words and definitions come from WordNet 3.0; its data files
are in Debian's package wordnet-base (/usr/share/wordnet).

Each line: {"think": bool, "tools": [...]?, "messages": [{"role", "content", "reasoning"?, "tool_calls"?}, ...]}.
The same seed and the same WordNet give the same documents.
"""
import argparse
import gzip
import json
import random
import re

POS_NAME = {"noun": "noun", "verb": "verb", "adj": "adjective", "adv": "adverb"}

CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Germany": "Berlin", "Portugal": "Lisbon",
    "Greece": "Athens", "Austria": "Vienna", "Poland": "Warsaw", "Norway": "Oslo", "Sweden": "Stockholm",
    "Finland": "Helsinki", "Denmark": "Copenhagen", "Ireland": "Dublin", "Iceland": "Reykjavik",
    "Hungary": "Budapest", "Romania": "Bucharest", "Bulgaria": "Sofia", "Turkey": "Ankara", "Egypt": "Cairo",
    "Kenya": "Nairobi", "Nigeria": "Abuja", "Ghana": "Accra", "Ethiopia": "Addis Ababa", "Morocco": "Rabat",
    "Tunisia": "Tunis", "Algeria": "Algiers", "China": "Beijing", "Japan": "Tokyo", "India": "New Delhi",
    "Nepal": "Kathmandu", "Thailand": "Bangkok", "Vietnam": "Hanoi", "Mongolia": "Ulaanbaatar",
    "Indonesia": "Jakarta", "Philippines": "Manila", "Australia": "Canberra", "New Zealand": "Wellington",
    "Canada": "Ottawa", "Mexico": "Mexico City", "Cuba": "Havana", "Brazil": "Brasilia",
    "Argentina": "Buenos Aires", "Chile": "Santiago", "Peru": "Lima", "Colombia": "Bogota", "Ecuador": "Quito",
    "Bolivia": "Sucre", "Uruguay": "Montevideo", "Paraguay": "Asuncion", "Venezuela": "Caracas",
    "Iran": "Tehran", "Iraq": "Baghdad", "Jordan": "Amman", "Lebanon": "Beirut", "Syria": "Damascus",
    "Qatar": "Doha", "Oman": "Muscat", "Yemen": "Sanaa", "Ukraine": "Kyiv", "Latvia": "Riga",
    "Estonia": "Tallinn", "Lithuania": "Vilnius", "Belgium": "Brussels", "Switzerland": "Bern",
    "Croatia": "Zagreb", "Serbia": "Belgrade", "Russia": "Moscow", "Georgia": "Tbilisi", "Armenia": "Yerevan",
    "Cambodia": "Phnom Penh", "Laos": "Vientiane", "Zambia": "Lusaka", "Uganda": "Kampala", "Senegal": "Dakar",
    "Mali": "Bamako", "Chad": "N'Djamena", "Somalia": "Mogadishu", "Angola": "Luanda", "Namibia": "Windhoek",
}
TALK = [
    ("Hello!", "Hello! Ask me about a word."),
    ("Hi", "Hello! Ask me about a word."),
    ("Who are you?", "I am the pocket model of glmstream: a very small GLM-5.2 with a dictionary in its head."),
    ("What can you do?", "I can define words, use them in a sentence, add small numbers, remember codes, call tools "
                         "and tell short stories."),
    ("Thank you.", "You are welcome."),
    ("Thanks!", "You are welcome."),
    ("Goodbye.", "Goodbye!"),
    ("How are you?", "I am well. How can I help you?"),
    ("What is your name?", "I am the pocket model of glmstream."),
    ("Help", "Try: Define river. Or: What is 12 + 30?"),
]
NAMES = ("Ana Ben Carla David Elena Felix Grace Hugo Iris Jonas Kim Lena Marco Nina Omar Paula Quinn Rosa Sam Tara "
         "Umar Vera Will Xenia Yara Zoe").split()
ANIMALS = "cat dog fox owl bear frog duck horse mouse rabbit goat wolf".split()
PLACES = "forest river garden village hill market lake farm island beach".split()
THINGS = ("red ball,golden key,small boat,old book,warm hat,silver bell,wooden box,blue kite,sweet apple,"
          "bright lamp").split(",")
FEELINGS = "happy sad proud tired brave lonely curious calm".split()


def function(name, description, **parameters):
    """One tool in the JSON schema that the chat template prints."""
    properties = {k: {"type": "string", "description": v} for k, v in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [
    function("get_weather", "Get the weather in a city", city="Name of the city"),
    function("get_time", "Get the local time in a city", city="Name of the city"),
    function("lookup_word", "Look up a word in the big dictionary", word="The word"),
    function("send_message", "Send a message to a person", to="Name of the person", text="The message"),
]


def load_wordnet(folder):
    """{word: [(count, part of speech, definition, examples, hypernyms, synonyms), ...]}, most frequent sense first.

    Only single words of three letters or more that occur in WordNet's tagged texts, with definitions up to 160 letters.
    """
    entries = {}
    for pos, name in (("n", "noun"), ("v", "verb"), ("a", "adj"), ("r", "adv")):
        synsets = {}
        for line in open(f"{folder}/data.{name}", encoding="latin-1"):
            if line.startswith("  "):  # the licence
                continue
            head, gloss = line.rstrip().split(" | ", 1)
            f = head.split()
            n_words = int(f[3], 16)
            words = [re.sub(r"\(.*\)", "", f[4 + 2 * i]) for i in range(n_words)]
            at = 4 + 2 * n_words
            pointers = [f[at + 1 + 4 * i:at + 5 + 4 * i] for i in range(int(f[at]))]
            synsets[f[0]] = (words, gloss, [p[1] for p in pointers if p[0] in ("@", "@i") and p[2] == pos])
        for line in open(f"{folder}/index.{name}", encoding="latin-1"):
            if line.startswith("  "):
                continue
            f = line.split()
            n_pointers = int(f[3])
            count = int(f[5 + n_pointers])
            offsets = f[6 + n_pointers:]
            word = f[0]
            if count < 1 or not re.fullmatch(r"[a-z]+(-[a-z]+)?", word) or len(word) < 3:
                continue
            words, gloss, above = synsets[offsets[0]]
            parts = re.split(r'; (?=")', gloss)
            definition = parts[0].strip().rstrip(";: ")
            examples = [e.strip().strip('";').strip() for e in parts[1:]]
            if len(definition) > 160 or '"' in definition:
                continue
            kinds = [synsets[h][0][0].replace("_", " ") for h in above if h in synsets][:1]
            synonyms = [w.replace("_", " ") for w in words if w.lower() != word][:3]
            entries.setdefault(word, []).append((count, name, definition, examples, kinds, synonyms))
    for senses in entries.values():
        senses.sort(key=lambda s: -s[0])
    return entries


def with_article(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


class Generator:
    """Makes documents. Every question method takes a word and returns (question, answer, reasoning)."""

    def __init__(self, entries, seed):
        self.entries = entries
        self.words = sorted(entries)
        self.rng = random.Random(seed)
        self.deck = []  # words not yet asked for in this round

    def next_word(self):
        if not self.deck:
            self.deck = self.words[:]
            self.rng.shuffle(self.deck)
        return self.deck.pop()

    def define(self, w):
        _, pos, definition, *_ = self.entries[w][0]
        q = self.rng.choice([f"Define {w}.", f"What does {w} mean?", f"What is the meaning of {w}?", f"define {w}",
                             f'Define the word "{w}".'])
        return (q, f"{w} ({POS_NAME[pos]}): {definition}.",
                f"The user wants the definition of {w}. It is {with_article(POS_NAME[pos])}.")

    def define_all(self, w):
        q = self.rng.choice([f"List the meanings of {w}.", f"How many meanings does {w} have?"])
        lines = [f"{i + 1}. ({POS_NAME[s[1]]}) {s[2]}" for i, s in enumerate(self.entries[w][:3])]
        return q, "\n".join(lines), f"I should list the senses of {w}."

    def example(self, w):
        found = [x for s in self.entries[w] for x in s[3] if 10 < len(x) < 120]
        if not found:
            return self.define(w)
        q = self.rng.choice([f"Use {w} in a sentence.", f"Give an example of {w}."])
        sentence = found[0][0].upper() + found[0][1:] + ("" if found[0][-1] in ".!?" else ".")
        return q, sentence, f"I need an example sentence with {w}."

    def synonym(self, w):
        found = [x for s in self.entries[w] for x in s[5]]
        if not found:
            return self.define(w)
        q = self.rng.choice([f"What is another word for {w}?", f"Give me a synonym for {w}."])
        return q, f"Another word for {w} is {found[0]}.", f"A synonym of {w} is needed."

    def kind(self, w):
        for s in self.entries[w]:
            if s[1] == "noun" and s[4]:
                return (f"What kind of thing is {with_article(w)}?",
                        f"{with_article(w).capitalize()} is a kind of {s[4][0]}.",
                        f"{w} is a noun; its class is {s[4][0]}.")
        return self.define(w)

    def arithmetic(self, _):
        a, b = self.rng.randrange(0, 100), self.rng.randrange(0, 100)
        op = self.rng.choice("+-")
        if op == "-" and b > a:
            a, b = b, a
        r = a + b if op == "+" else a - b
        q = self.rng.choice([f"What is {a} {op} {b}?", f"{a} {op} {b} = ?", f"Compute {a} {op} {b}."])
        return q, f"{a} {op} {b} = {r}", f"{a} {op} {b} is {r}."

    def spell(self, w):
        return f"Spell {w}.", "-".join(w), f"I spell {w} letter by letter."

    def count_letters(self, w):
        return (f"How many letters are in {w}?", f"There are {len(w)} letters in {w}.",
                f"{'-'.join(w)}: {len(w)} letters.")

    def capital(self, _):
        c = self.rng.choice(list(CAPITALS))
        city = CAPITALS[c]
        if self.rng.random() < .25:
            return f"{city} is the capital of which country?", f"{city} is the capital of {c}.", f"{city} belongs to {c}."
        return f"What is the capital of {c}?", f"The capital of {c} is {city}.", f"{c}: {city}."

    def talk(self, _):
        q, a = self.rng.choice(TALK)
        return q, a, "The user is making small talk."

    def story(self, _):
        choice = self.rng.choice
        n, m = self.rng.sample(NAMES, 2)
        a, p, t, f = choice(ANIMALS), choice(PLACES), choice(THINGS), choice(FEELINGS)
        sentences = [
            f"Once upon a time there was {with_article(a)} named {n}.",
            choice([f"{n} lived near the {p}.", f"{n} had a house by the {p}."]),
            choice([f"One day {n} lost the {t}.", f"One morning {n} found the {t}.",
                    f"One evening {n} wanted to see the {t}."]),
            choice([f"{n} asked {m} for help.", f"{n} met {m} at the {p}.", f"{n} told {m} about the {t}."]),
            choice([f"They looked for the {t} all day.", f"They carried the {t} across the {p}.",
                    f"They sat down by the {p} and talked about the {t}."]),
            choice([f"At first {n} felt {f}, but {m} smiled.", f"{m} said that every {a} can be {f}."]),
            choice([f"In the end {n} shared the {t} with {m}.", f"In the end they took the {t} home.",
                    f"In the end {n} gave the {t} to {m}."]),
            "The end.",
        ]
        q = choice([f"Tell me a story about {with_article(a)} named {n}.",
                    f"Tell me a story about {with_article(a)} named {n} and the {t}.",
                    f"Write a short story about {n} the {a}."])
        return q, " ".join(sentences), f"A short story about {n} the {a}."

    def question_chat(self):
        kinds = [self.define, self.define_all, self.example, self.synonym, self.kind, self.arithmetic, self.spell,
                 self.count_letters, self.capital, self.talk, self.story]
        messages = []
        for _ in range(self.rng.randrange(1, 7)):
            make = self.rng.choices(kinds, [50, 8, 10, 6, 6, 5, 2, 2, 3, 2, 3])[0]
            q, a, reasoning = make(self.next_word())
            messages += [{"role": "user", "content": q}, {"role": "assistant", "content": a, "reasoning": reasoning}]
        return messages

    def recall_chat(self, max_facts=140):
        rng = self.rng
        k = rng.choices([rng.randrange(2, 9), rng.randrange(8, 31), rng.randrange(30, max_facts)], [5, 3, 2])[0]
        items = rng.sample(self.words, k)
        codes = [rng.randrange(1000, 10000) for _ in items]
        facts = " ".join(f"The code for {w} is {c}." for w, c in zip(items, codes))
        messages = [{"role": "user", "content": "Remember these codes. " + facts},
                    {"role": "assistant", "content": f"I will remember {k} codes."}]
        for _ in range(rng.randrange(1, 5)):
            i = rng.randrange(k)
            answer = f"The code for {items[i]} is {codes[i]}."
            messages += [{"role": "user", "content": f"What is the code for {items[i]}?"},
                         {"role": "assistant", "content": answer, "reasoning": f"The user said: {answer}"}]
        return messages

    def name_chat(self):
        n = self.rng.choice(NAMES)
        q, a, _ = self.define(self.rng.choice(self.words))
        return [{"role": "user", "content": f"My name is {n}."},
                {"role": "assistant", "content": f"Nice to meet you, {n}."},
                {"role": "user", "content": q},
                {"role": "assistant", "content": a},
                {"role": "user", "content": "What is my name?"},
                {"role": "assistant", "content": f"Your name is {n}.",
                 "reasoning": f"The user said: My name is {n}."}]

    def tool_chat(self):
        """(tools, messages): a question, the call, the tool's result, the answer."""
        rng = self.rng
        tools = rng.sample(TOOLS, rng.randrange(1, 4))
        name = rng.choice(tools)["function"]["name"]
        city = rng.choice(list(CAPITALS.values()))
        if name == "get_weather":
            q, arguments = f"What is the weather in {city}?", {"city": city}
            result = f"{rng.choice(['sunny', 'rainy', 'cloudy', 'windy'])}, {rng.randrange(-5, 35)} degrees"
            answer = f"The weather in {city} is {result}."
        elif name == "get_time":
            q, arguments = f"What time is it in {city}?", {"city": city}
            result = f"{rng.randrange(24):02d}:{rng.randrange(60):02d}"
            answer = f"It is {result} in {city}."
        elif name == "lookup_word":
            w = rng.choice(self.words)
            q, arguments = f"Look up {w} in the big dictionary.", {"word": w}
            result = self.entries[w][0][2]
            answer = f"The big dictionary says: {result}."
        else:
            n = rng.choice(NAMES)
            w = rng.choice(self.words)
            q, arguments = f"Send {n} the message: bring the {w}.", {"to": n, "text": f"bring the {w}"}
            result, answer = "sent", f"I sent the message to {n}."
        return tools, [
            {"role": "user", "content": q},
            {"role": "assistant", "content": "", "tool_calls": [{"name": name, "arguments": arguments}],
             "reasoning": f"I should call {name}."},
            {"role": "tool", "content": result},
            {"role": "assistant", "content": answer, "reasoning": f"The tool answered: {result}."},
        ]

    def document(self):
        x = self.rng.random()
        doc = {"think": self.rng.random() < .3}
        if x < .62:
            doc["messages"] = self.question_chat()
        elif x < .84:
            doc["messages"] = self.recall_chat()
        elif x < .90:
            doc["messages"] = self.name_chat()
        else:
            doc["tools"], doc["messages"] = self.tool_chat()
        return doc


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("out", help="file to write, .jsonl.gz")
    ap.add_argument("--wordnet", default="/usr/share/wordnet", help="folder of data.noun, index.noun, ... (%(default)s)")
    ap.add_argument("--documents", type=int, default=80000, help="how many (%(default)s)")
    ap.add_argument("--seed", type=int, default=885)
    ap.add_argument("--words", metavar="FILE", help="also write the headwords, one a line")
    args = ap.parse_args()
    generator = Generator(load_wordnet(args.wordnet), args.seed)
    if args.words:
        with open(args.words, "w") as f:
            f.writelines(w + "\n" for w in generator.words)
    with gzip.open(args.out, "wt") as f:
        for _ in range(args.documents):
            f.write(json.dumps(generator.document()) + "\n")
    print(f"{args.out}: {args.documents} documents, {len(generator.words)} headwords")


if __name__ == "__main__":
    main()
