"""Makes long sentence pairs from short ones: joins consecutive pairs of a parallel corpus, on both sides alike.

    python scripts/prepare/join_sentences.py --input tok/test --languages en de --sizes 2 4 --output data/test.joined

writes the corpus in groups of two, then once more in groups of four. The translation of a joined sentence is the joined
translations of its parts, and all sizes have the same words, so scores by length compare only the effect of length.
Pairs at the end that do not fill a group are left out. Size 1 is the corpus as it is.
"""

import argparse
from typing import Dict, List

from parallel_corpus import as_words as tidy
from parallel_corpus import prepare_split

from fairseq_structattn.analysis.files import check_outputs, command, write_lines
from fairseq_structattn.analysis.parallel_text import CorpusError


def join(sentences: List[str], size: int) -> List[str]:
    """Groups of `size` consecutive sentences, each as one; what is left at the end is dropped."""
    whole = len(sentences) - len(sentences) % size
    return [" ".join(sentences[start : start + size]) for start in range(0, whole, size)]


def join_all(corpus: Dict[str, List[str]], sizes: List[int]) -> Dict[str, List[str]]:
    """Every language of a corpus in groups of each size, one size after the other.

    Raises:
        CorpusError: a size that is not positive, given twice, or larger than the corpus
    """
    count = len(next(iter(corpus.values())))
    for size in sizes:
        if not 1 <= size <= count:
            raise CorpusError(f"--sizes {size}: give numbers from 1 to {count}, the sentences of the corpus")
    if len(set(sizes)) < len(sizes):
        raise CorpusError(f"--sizes {' '.join(map(str, sizes))}: give each size once")
    return {
        language: [joined for size in sizes for joined in join(sentences, size)]
        for language, sentences in corpus.items()
    }


@command
def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--input", required=True, metavar="PREFIX", help="input PREFIX.<lang>, one tokenised sentence a line"
    )
    parser.add_argument("--languages", required=True, nargs=2, metavar="LANG")
    parser.add_argument("--sizes", required=True, nargs="+", type=int, metavar="N", help="sentences in a group")
    parser.add_argument("--output", required=True, metavar="PREFIX", help="output PREFIX.<lang>")
    options = parser.parse_args(arguments)
    outputs = {language: f"{options.output}.{language}" for language in options.languages}
    check_outputs({f"--output, {language},": path for language, path in outputs.items()})
    joined = join_all(prepare_split(options.input, dict.fromkeys(options.languages, tidy)), options.sizes)
    for language, sentences in joined.items():
        write_lines(outputs[language], sentences)
        longest = max(len(sentence.split()) for sentence in sentences)
        print(f"{outputs[language]}: {len(sentences):,} sentences, the longest of {longest} words")


if __name__ == "__main__":
    main()
