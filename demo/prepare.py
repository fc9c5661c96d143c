# SPDX-License-Identifier: Apache-2.0
"""Where the base of the second demo starts: not at random, but near circuits that look words up in a text.

From random weights a model of this size needs many times the tokens until its heads find a word again over hundreds of
tokens. So the residual stream starts in blocks, and training goes on from there; every weight is trained.

- Block OWN holds the token's word. The forms of a word (with a space before it, in capitals) start from one vector, which
  also has a part of its first letter's.
- The heads of the first layer copy OWN of the token 3, 6, 11 and 2 places back into blocks of their own: in a note
  "Mara (3 Jan): red lamps in Oslo." the day, the month and the thing then hold the name, and a name the one of the line before.
- Heads of the next layers match one block of the query with another of the keys, and copy a third.

The idea of starting attention near the identity is from mimetic initialisation (Trockman and Kolter 2023, arXiv 2305.09828).
"""
import torch

SIZE = 64                            # of a head and of a block
CONSTANT = 0                         # a dimension that is the same for every token
OWN, BACK3, BACK6, BACK11 = (slice(1 + SIZE * place, min(1 + SIZE * (place + 1), 256)) for place in range(4))
SCALE = 1.0                          # of a word's entries
FOUND = 0.5                          # of the entries of what a head has found
FINAL = 0.1                          # weight of the last norm: the words' vectors are long for an output layer
SHARP, MATCH = 1.7, 0.22             # entries of the projections: looking at a place, comparing words

# Of every layer after the first, for both of its groups of heads: blocks of the two queries, of the keys, of the values.
# TURNED is the token two places back, which shares the block BACK3.
TURNED = "turned"
MATCHES = {
    1: [((BACK3, OWN), [OWN], BACK6), ((OWN, BACK3), [BACK11], OWN)],
    2: [((BACK3, OWN), [TURNED, BACK6], OWN), ((BACK3, OWN), [OWN], BACK11)],
    3: [((OWN, OWN), [TURNED, BACK6], OWN), ((OWN, OWN), [BACK11], OWN)],
}


def word_vectors(tokens):
    """A vector for every token: its word's, a part of its first letter's and its form's, and a little of its own."""
    words, forms = {}, {}
    found = torch.zeros(len(tokens), SIZE)
    for number, token in enumerate(tokens):
        text = token.lstrip("\u0120")
        parts = [(words, text.lower(), 1.0), (forms, (token != text, text.isupper(), len(text) == 1), 0.5)]
        if len(text) > 1 and text.isalpha():
            parts.append((words, text[0].lower(), 0.4))
        for vectors, name, share in parts:
            if name not in vectors:
                vectors[name] = torch.randn(SIZE)
            found[number] += share * vectors[name]
    found += 0.2 * torch.randn(len(tokens), SIZE)
    return found * SIZE ** 0.5 / found.norm(dim=1, keepdim=True)


@torch.no_grad()
def prepare(model, encoder):
    """Gives a new model its first weights, from torch's random numbers."""
    config, layers = model.config, model.model.layers
    half = SIZE // 2
    angles = config.rope_parameters["rope_theta"] ** (-torch.arange(half) / half)
    embedding = model.model.embed_tokens.weight
    embedding.zero_()
    embedding[:, CONSTANT] = 4 * SCALE
    tokens = [encoder.tokenizer.id_to_token(number) or "" for number in range(config.vocab_size)]
    embedding[:, OWN] = SCALE * word_vectors(tokens)
    model.model.norm.weight.fill_(FINAL)
    turn = torch.linalg.qr(torch.randn(SIZE, SIZE)).Q

    first = layers[0].self_attn
    for projection in (first.q_proj, first.k_proj, first.v_proj, first.o_proj):
        projection.weight.zero_()
    near = torch.where(torch.arange(half) < half // 4, SHARP, 0.0)      # fast rotations tell places apart
    for group in range(2):
        first.k_proj.weight[group * SIZE:group * SIZE + half, CONSTANT] = near
        first.v_proj.weight[group * SIZE:(group + 1) * SIZE, OWN] = torch.eye(SIZE)
    for head, (offset, block) in enumerate(((3, BACK3), (6, BACK6), (11, BACK11), (2, BACK3))):
        rows = slice(head * SIZE, (head + 1) * SIZE)
        first.q_proj.weight[rows, CONSTANT] = torch.cat([near * torch.cos(offset * angles), -near * torch.sin(offset * angles)])
        copy = turn if offset == 2 else torch.eye(SIZE)
        first.o_proj.weight[block, rows] = SCALE / 1.79 * copy[:block.stop - block.start]

    slow = (700 * angles < 1).repeat(2)                                 # slow rotations do not see the distance
    for number, layer in enumerate(layers):
        layer.mlp.down_proj.weight *= 0.5
        if number > max(MATCHES):
            layer.self_attn.o_proj.weight *= 0.5
    for number, groups in MATCHES.items():
        attention = layers[number].self_attn
        attention.v_proj.weight.zero_()
        attention.o_proj.weight.zero_()
        for group, (queries, keys, values) in enumerate(groups):
            rows = slice(group * SIZE, (group + 1) * SIZE)
            compare = MATCH * torch.randn(SIZE, SIZE) * slow[:, None]
            for key in keys:
                block, matrix = (BACK3, compare @ turn.T) if key == TURNED else (key, compare)
                attention.k_proj.weight[rows, block] += matrix[:, :block.stop - block.start]
            for place, query in enumerate(queries):
                head = slice((2 * group + place) * SIZE, (2 * group + place + 1) * SIZE)
                attention.q_proj.weight[head, query] += compare[:, :query.stop - query.start]
                attention.o_proj.weight[OWN, head] += FOUND * torch.eye(SIZE)
            attention.v_proj.weight[rows, values] += torch.eye(SIZE)[:, :values.stop - values.start]
