"""Makes the corpus of tree transduction: arithmetic formulas in prefix notation, and the same in infix notation.

    ( * ( + ( + 15 7 ) 1 8 ) ( + 19 0 11 ) )   ->   ( ( 15 + 7 ) + 1 + 8 ) * ( 19 + 0 + 11 )

Kim et al., "Structured Attention Networks" (ICLR 2017), section 4.1: 15,000 training pairs of nesting depth 2 to 4,
5,000 of each; 1,000 test pairs of depth 2 to 6, deeper than any seen in training, 200 of each. The paper gives the
alphabet and these numbers. What it leaves open is chosen here:

* A formula of depth d has an operator, + or *, and 2 to 4 parts. One of them, at a random place, is a formula of depth
  d - 1; each other one is, with probability 0.25, a formula of a depth from 1 to d - 1, and else a number from 0 to 20.
  With these the mean lengths of the targets grow with depth as the published scores of the system without attention
  suggest: it gets one token right whatever the depth, so that its scores are in proportion to 1 / length.
  ``--generator free`` nests each part independently, and draws until a formula has the depth.
* 1,000 validation pairs of depth 2 to 6, drawn like the test set. No formula is in two splits, or twice in one.
* The outermost brackets of the infix formula are left out, as in the paper's example. The paper's root symbol ``$``
  is not written: models that parse put a root symbol of their own before the sentence.

Files: train, valid and test, each .prefix and .infix, and valid.depth2 to test.depth6 by depth. ``valid`` holds the
depths seen in training, ``test`` all of them. The same options give the same files.
"""

import argparse
import os
import random
from typing import Dict, List, NamedTuple, Set, Tuple, Union

from fairseq_structattn.analysis.files import InputError, check_output_folders, command, write_lines

OPERATORS = ("+", "*")
Formula = Union[str, Tuple]  # a number, or an operator and its parts


class Grammar(NamedTuple):
    """How formulas are drawn."""

    generator: str
    nested: float
    least_parts: int
    most_parts: int
    largest: int

    def draw(self, depth: int, random_source: random.Random) -> Formula:
        """A formula of exactly the given depth."""
        if self.generator == "forced":
            return self._forced(depth, random_source)
        while True:
            formula = self._free(depth, random_source)
            if depth_of(formula) == depth:
                return formula

    def _forced(self, depth: int, random_source: random.Random) -> Formula:
        parts = random_source.randint(self.least_parts, self.most_parts)
        deepest = random_source.randrange(parts)
        return (random_source.choice(OPERATORS),) + tuple(
            self._part(depth, part == deepest, random_source) for part in range(parts)
        )

    def _part(self, depth: int, deepest: bool, random_source: random.Random) -> Formula:
        if depth > 1 and deepest:
            return self._forced(depth - 1, random_source)
        if depth > 1 and random_source.random() < self.nested:
            return self._forced(random_source.randint(1, depth - 1), random_source)
        return str(random_source.randint(0, self.largest))

    def _free(self, most_depth: int, random_source: random.Random) -> Formula:
        parts = []
        for _ in range(random_source.randint(self.least_parts, self.most_parts)):
            if most_depth > 1 and random_source.random() < self.nested:
                parts.append(self._free(most_depth - 1, random_source))
            else:
                parts.append(str(random_source.randint(0, self.largest)))
        return (random_source.choice(OPERATORS), *parts)


def depth_of(formula: Formula) -> int:
    """How deep brackets are nested; 0 for a number."""
    return 0 if isinstance(formula, str) else 1 + max(map(depth_of, formula[1:]))


def prefix(formula: Formula) -> str:
    """``( + 1 2 )``"""
    if isinstance(formula, str):
        return formula
    return " ".join(["(", formula[0], *map(prefix, formula[1:]), ")"])


def infix(formula: Formula, outermost: bool = True) -> str:
    """``1 + 2``, in brackets unless it is the whole."""
    if isinstance(formula, str):
        return formula
    inside = f" {formula[0]} ".join(infix(part, outermost=False) for part in formula[1:])
    return inside if outermost else f"( {inside} )"


def draw_distinct(grammar: Grammar, depth: int, count: int, taken: Set[str], random_source) -> List[Formula]:
    """`count` formulas that are not in `taken`, and adds them to it."""
    formulas = []
    for _ in range(1000 * count):
        if len(formulas) == count:
            break
        formula = grammar.draw(depth, random_source)
        if prefix(formula) not in taken:
            taken.add(prefix(formula))
            formulas.append(formula)
    if len(formulas) < count:
        raise InputError(
            f"found only {len(formulas)} of {count} distinct formulas of depth {depth}: ask for fewer, or allow more "
            "parts"
        )
    return formulas


def draw_splits(grammar: Grammar, options: argparse.Namespace) -> Dict[str, List[Formula]]:
    """Formulas by the name of their file."""
    random_source = random.Random(options.seed)
    taken: Set[str] = set()
    splits: Dict[str, List[Formula]] = {}
    depths = range(options.least_depth, options.most_test_depth + 1)
    for split, count in (("test", options.test), ("valid", options.valid)):
        for depth in depths:
            splits[f"{split}.depth{depth}"] = draw_distinct(grammar, depth, count, taken, random_source)
    seen = range(options.least_depth, options.most_train_depth + 1)
    splits["test"] = [formula for depth in depths for formula in splits[f"test.depth{depth}"]]
    splits["valid"] = [formula for depth in seen for formula in splits[f"valid.depth{depth}"]]
    splits["train"] = [
        formula for depth in seen for formula in draw_distinct(grammar, depth, options.train, taken, random_source)
    ]
    random_source.shuffle(splits["train"])
    return splits


def parse_arguments(arguments=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dest", required=True, metavar="DIR", help="folder for the files")
    parser.add_argument(
        "--train", type=int, default=5000, metavar="N", help="training pairs for each depth (default: 5000)"
    )
    parser.add_argument(
        "--valid", type=int, default=200, metavar="N", help="validation pairs for each depth (default: 200)"
    )
    parser.add_argument("--test", type=int, default=200, metavar="N", help="test pairs for each depth (default: 200)")
    parser.add_argument("--least-depth", type=int, default=2, metavar="D", help="least depth (default: 2)")
    parser.add_argument(
        "--most-train-depth", type=int, default=4, metavar="D", help="largest depth in training (default: 4)"
    )
    parser.add_argument(
        "--most-test-depth", type=int, default=6, metavar="D", help="largest depth in the test set (default: 6)"
    )
    parser.add_argument("--generator", choices=("forced", "free"), default="forced", help="see above (default: forced)")
    parser.add_argument(
        "--nested", type=float, default=0.25, metavar="P", help="probability of nesting (default: 0.25)"
    )
    parser.add_argument(
        "--least-parts", type=int, default=2, metavar="N", help="fewest parts of a formula (default: 2)"
    )
    parser.add_argument("--most-parts", type=int, default=4, metavar="N", help="most parts of a formula (default: 4)")
    parser.add_argument("--largest", type=int, default=20, metavar="N", help="largest number (default: 20)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the random choice (default: 1)")
    options = parser.parse_args(arguments)
    check(options)
    return options


def check(options: argparse.Namespace) -> None:
    """Refuses options that cannot work."""
    for name in ("train", "valid", "test", "least_depth", "least_parts"):
        if getattr(options, name) < 1:
            raise InputError(f"--{name.replace('_', '-')} {getattr(options, name)}: must be at least 1")
    if not options.least_depth <= options.most_train_depth <= options.most_test_depth:
        raise InputError(
            f"depths must not fall from --least-depth {options.least_depth} over --most-train-depth "
            f"{options.most_train_depth} to --most-test-depth {options.most_test_depth}"
        )
    if options.most_parts < options.least_parts:
        raise InputError(f"--most-parts {options.most_parts} is less than --least-parts {options.least_parts}")
    if not 0 <= options.nested < 1 or (options.generator == "free" and options.nested == 0):
        raise InputError(f"--nested {options.nested}: must be from 0 to below 1; with --generator free above 0")


def mean(numbers: List[int]) -> float:
    return sum(numbers) / len(numbers)


@command
def main(arguments=None) -> None:
    options = parse_arguments(arguments)
    parts = (options.least_parts, options.most_parts)
    grammar = Grammar(options.generator, options.nested, *parts, options.largest)
    check_output_folders({"--dest": options.dest})
    splits = draw_splits(grammar, options)
    for split, formulas in splits.items():
        path = os.path.join(options.dest, split)
        sides = [[write(formula) for formula in formulas] for write in (prefix, infix)]
        for suffix, lines in zip((".prefix", ".infix"), sides):
            write_lines(path + suffix, lines)
        lengths = [mean([len(line.split()) for line in lines]) for lines in sides]
        print(f"{path}: {len(formulas):,} formulas, {lengths[0]:.1f} and {lengths[1]:.1f} tokens on average")


if __name__ == "__main__":
    main()
