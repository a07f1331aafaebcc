"""Makes a corpus of German number words, as characters, and the same numbers in English words.

    s i e b e n u n d v i e r z i g   ->   forty seven

A German number is one long word and has the units before the tens, so a model has to find the parts of the word and
put them in another order. The numbers of all splits are distinct, and the same options give the same files.

Nine in ten numbers below a million have six digits, so a uniform draw has hardly any short numbers, which show each
part of a number alone. A tenth of the training set is therefore the smallest numbers that are in neither the validation
nor the test set. All other numbers, and all of validation and test, are drawn uniformly.
"""

import argparse
import os
import random
from typing import Dict, List, Set

from fairseq_structattn.analysis.files import InputError, check_output_folders, command, write_lines

SMALLEST_SHARE = 10  # one training number in so many is taken from the smallest


def parse_arguments(arguments=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dest", required=True, metavar="DIR", help="folder for train/valid/test .de and .en")
    parser.add_argument("--train", type=int, default=24000, metavar="N", help="training numbers (default: 24000)")
    parser.add_argument("--valid", type=int, default=500, metavar="N", help="validation numbers (default: 500)")
    parser.add_argument("--test", type=int, default=500, metavar="N", help="test numbers (default: 500)")
    parser.add_argument("--limit", type=int, default=1000000, metavar="N", help="exclusive upper bound of the numbers")
    parser.add_argument(
        "--alignments",
        action="store_true",
        help="also write .align, the letters of each word (--limit at most 1000000)",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the random choice (default: 1)")
    return parser.parse_args(arguments)


def draw_uniformly(count: int, limit: int, taken: Set[int], generator: random.Random) -> List[int]:
    """Draws `count` numbers below `limit` that are not in `taken`, and adds them to it."""
    numbers = []
    while len(numbers) < count:
        number = generator.randrange(limit)
        if number not in taken:
            taken.add(number)
            numbers.append(number)
    return numbers


def take_smallest(count: int, taken: Set[int]) -> List[int]:
    """Takes the `count` smallest numbers that are not in `taken`, and adds them to it."""
    numbers = []
    candidate = 0
    while len(numbers) < count:
        if candidate not in taken:
            taken.add(candidate)
            numbers.append(candidate)
        candidate += 1
    return numbers


def choose_numbers(train: int, valid: int, test: int, limit: int, seed: int) -> Dict[str, List[int]]:
    for option, value in (("--train", train), ("--valid", valid), ("--test", test)):
        if value < 1:
            raise InputError(f"{option} {value}: every split needs at least one number")
    if train + valid + test > limit:
        raise InputError(
            f"--limit {limit}: there are not {train + valid + test} distinct numbers below it; raise --limit or ask "
            "for fewer with --train, --valid and --test"
        )
    generator = random.Random(seed)
    taken: Set[int] = set()
    splits = {
        "test": draw_uniformly(test, limit, taken, generator),
        "valid": draw_uniformly(valid, limit, taken, generator),
    }
    smallest = take_smallest(train // SMALLEST_SHARE, taken)
    splits["train"] = smallest + draw_uniformly(train - len(smallest), limit, taken, generator)
    generator.shuffle(splits["train"])
    return splits


def german_characters(number: int) -> str:
    from num2words import num2words

    # from a million on German has several words: the space between them is a character of its own
    return " ".join(num2words(number, lang="de").replace(" ", "_"))


def english_words(number: int) -> str:
    from num2words import num2words

    return " ".join(num2words(number, lang="en").replace(",", " ").replace("-", " ").split())


def german_parts(number: int) -> List[str]:
    """The letters that a number below a million is put together of, in the order of German."""
    for unit, letters in ((1000, "tausend"), (100, "hundert")):
        if number >= unit:
            rest = german_parts(number % unit) if number % unit else []
            return [*_before(german_parts(number // unit)), letters, *rest]
    if number > 20 and number % 10:
        return [*_before(german_parts(number % 10)), "und", *german_parts(number - number % 10)]
    return [german_characters(number).replace(" ", "")]


def _before(parts: List[str]) -> List[str]:
    """One by itself is "ein" before another part, and not "eins"."""
    return ["ein"] if parts == ["eins"] else parts


def alignment(number: int) -> str:
    """Links ``i-j`` of the German letters with the English word that they mean, in the manner of Pharaoh.

    Neither "und" nor "and" is linked to anything; at "und" the parts beside it change places.
    """
    parts = german_parts(number)
    starts = [sum(map(len, parts[:place])) for place in range(len(parts))]
    order = list(range(len(parts)))
    for place in (place for place, letters in enumerate(parts) if letters == "und"):
        order[place - 1], order[place + 1] = place + 1, place - 1
    meant = [place for place in order if parts[place] != "und"]
    words = [j for j, word in enumerate(english_words(number).split()) if word != "and"]
    return " ".join(
        f"{starts[place] + letter}-{j}" for place, j in zip(meant, words) for letter in range(len(parts[place]))
    )


@command
def main(arguments=None) -> None:
    options = parse_arguments(arguments)
    try:
        import num2words  # noqa: F401
    except ImportError:
        raise InputError(
            "num2words is not installed; install the extra `quickstart`: pip install -e '.[quickstart]'"
        ) from None
    if options.alignments and options.limit > 1000000:
        raise InputError(f"--limit {options.limit}: alignments are known of numbers below a million only")
    check_output_folders({"--dest": options.dest})
    splits = choose_numbers(options.train, options.valid, options.test, options.limit, options.seed)
    for split in ("train", "valid", "test"):
        prefix = os.path.join(options.dest, split)
        write_lines(prefix + ".de", [german_characters(number) for number in splits[split]])
        write_lines(prefix + ".en", [english_words(number) for number in splits[split]])
        if options.alignments:
            write_lines(prefix + ".align", [alignment(number) for number in splits[split]])
        print(f"{prefix}.de, .en: {len(splits[split]):,} numbers below {options.limit:,}")


if __name__ == "__main__":
    main()
