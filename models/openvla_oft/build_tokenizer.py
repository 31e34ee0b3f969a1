"""Makes ``assets/tokenizer.json``: a byte-fallback BPE of at most 768 tokens with Llama 2's conventions.

Run it again after changing the sentences below. It downloads nothing and gives the same result each time::

    python -m embodied.models.openvla_oft.build_tokenizer

Ids: 0 <unk>, 1 <s>, 2 </s>, 3…258 bytes, then characters and merges, last <PAD>.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from .tokens.processing import prompt
from .tokens.tokenizer import EMBEDDED, SPACE

VOCAB = 768
SPECIAL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]

COLOURS = ("black", "white", "red", "green", "blue", "yellow", "yellow and white", "orange", "purple", "brown")
THINGS = (
    *(
        "bowl",
        "plate",
        "mug",
        "cube",
        "ball",
        "peg",
        "block",
        "bottle",
        "wine bottle",
        "moka pot",
        "frying pan",
        "book",
    ),
    *("alphabet soup", "tomato sauce", "cream cheese box", "butter", "orange juice", "milk", "ketchup", "bbq sauce"),
    *("salad dressing", "chocolate pudding", "cookie box", "ramekin", "basket", "tray", "charger", "apple", "banana"),
)
PLACES = (
    *("plate", "basket", "stove", "microwave", "cabinet", "top drawer", "bottom drawer of the cabinet", "wine rack"),
    *("back compartment of the caddy", "cabinet shelf", "table center", "top of the cabinet", "middle drawer", "tray"),
    *("left plate", "right plate", "front of the stove", "goal", "receptacle", "hole", "sink", "bin", "target"),
)
VERBS = (
    *("pick up", "lift", "push", "pull", "grasp", "move", "slide", "rotate", "turn over", "reach", "poke", "stack"),
    *("roll", "throw", "touch", "bring", "take", "put down", "insert", "plug", "hold"),
)
SENTENCES = (
    *("turn on the stove", "turn off the stove", "open the middle drawer of the cabinet", "close the microwave"),
    *("put both moka pots on the stove", "put both the alphabet soup and the tomato sauce in the basket"),
    *(
        "pick up the black bowl next to the ramekin and place it on the plate",
        "open the top drawer and put the bowl inside",
    ),
    *(
        "put the white mug on the left plate and put the yellow and white mug on the right plate",
        "push the t to the goal",
    ),
    *(
        "pick up the black bowl between the plate and the ramekin and place it on the plate",
        "stack the red cube on the green cube",
    ),
    *(
        "insert the peg into the hole sideways",
        "pick up the red cube and move it to a goal position",
        "plug the charger in",
    ),
    *(
        "put the black bowl in the bottom drawer of the cabinet and close it",
        "put the yellow and white mug in the microwave and close it",
    ),
    *("pick up the book and place it in the back compartment of the caddy", "roll the ball to the end of the table"),
    *(
        "put carrot on plate in scene",
        "put the spoon on the towel",
        "put eggplant into yellow basket",
        "pull the cube with the tool",
    ),
    *(
        "lift the peg upright",
        "poke the cube with the peg",
        "place the sphere into the bin",
        "close the cabinet door",
        "open the door",
    ),
    "abcdefghijklmnopqrstuvwxyz 0123456789 . , ; : ' \" ! ? ( ) - _ / + = % & # @",
)


def corpus() -> list[str]:
    """Returns prompts of a few thousand sentences in the style of LIBERO, ManiSkill and Bridge, to train the tokenizer
    on."""
    picks = [f"{verb} the {thing}" for verb, thing in product(VERBS, THINGS)]
    coloured = [f"{verb} the {colour} {thing}" for verb, colour, thing in product(VERBS[:4], COLOURS, THINGS[:8])]
    puts = [
        f"put the {thing} {where} the {place}"
        for thing, where, place in product(THINGS, ("on", "in", "into", "next to", "in front of"), PLACES)
    ]
    return [prompt(sentence) for sentence in (*SENTENCES * 20, *picks, *coloured, *puts)]


def _conventions(tokenizer: Tokenizer) -> Tokenizer:
    """Turn spaces into '▁' and put one in front. Pieces begin at '▁' and at punctuation: a trailing '▁' always stays
    alone, and a noun is the same token before "?" as elsewhere."""
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(SPACE, "merged_with_next"), pre_tokenizers.Punctuation()]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def build() -> Tokenizer:
    """Trains the small tokenizer on :func:`corpus`."""
    tokenizer = _conventions(Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True)))
    trainer = trainers.BpeTrainer(vocab_size=VOCAB - 1, special_tokens=[*SPECIAL, *BYTES], show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    # Made anew: the trainer registers byte tokens as special, and then the text "<0x41>" would match one.
    model = models.BPE(
        vocab=_vocab(tokenizer), merges=_merges(tokenizer), unk_token="<unk>", byte_fallback=True, fuse_unk=True
    )
    final = _conventions(Tokenizer(model))
    final.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in [*SPECIAL, "<PAD>"]])
    # Other programs take BOS from here, as from Llama 2's file. This library puts it in front itself.
    final.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    return final


def _vocab(tokenizer: Tokenizer) -> dict[str, int]:
    return dict(sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]))


def _merges(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    return [tuple(merge) for merge in json.loads(tokenizer.to_str())["model"]["merges"]]


def main(path: Path = EMBEDDED) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    build().save(str(path))
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
