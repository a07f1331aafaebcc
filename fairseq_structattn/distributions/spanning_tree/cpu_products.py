"""Products of matrices, :data:`BLOCK` rows or columns at a time, for the elimination of words on the CPU.

All matrices are contiguous float64 arrays of one width, a multiple of :data:`BLOCK`; columns are given by their number,
again a multiple of it. Eight sums of eight numbers stay in registers while a loop runs over all that is added to them.
Results must not overlap with what is multiplied.
"""

from ..kernels.numba_compile import subroutine
from ..kernels.numba_simd import LANES, add, fill, load, multiply_add, store

BLOCK = LANES


@subroutine
def add_products(target, factors, column, source, row, first, last, start, end):
    """``target[r, c] += Σ_j factors[r, column + j] · source[row + j, c]`` for j < 8, r in first..last-1 and c in
    start..end-1."""
    width = target.shape[1]
    for c in range(start, end, LANES):
        at = row * width + c
        s0, s1 = load(source, at), load(source, at + width)
        s2, s3 = load(source, at + 2 * width), load(source, at + 3 * width)
        s4, s5 = load(source, at + 4 * width), load(source, at + 5 * width)
        s6, s7 = load(source, at + 6 * width), load(source, at + 7 * width)
        for r in range(first, last):
            at = r * width + c
            even = multiply_add(fill(factors[r, column]), s0, load(target, at))
            odd = multiply_add(fill(factors[r, column + 1]), s1, fill(0.0))
            even = multiply_add(fill(factors[r, column + 2]), s2, even)
            odd = multiply_add(fill(factors[r, column + 3]), s3, odd)
            even = multiply_add(fill(factors[r, column + 4]), s4, even)
            odd = multiply_add(fill(factors[r, column + 5]), s5, odd)
            even = multiply_add(fill(factors[r, column + 6]), s6, even)
            odd = multiply_add(fill(factors[r, column + 7]), s7, odd)
            store(target, at, add(even, odd))


@subroutine
def add_sums(target, row, factors, column, source, first, last, start, end):
    """``target[row + j, c] += Σ_r factors[r, column + j] · source[r, c]`` for j < 8, r in first..last-1 and c in
    start..end-1."""
    width = target.shape[1]
    for c in range(start, end, LANES):
        at = row * width + c
        t0, t1 = load(target, at), load(target, at + width)
        t2, t3 = load(target, at + 2 * width), load(target, at + 3 * width)
        t4, t5 = load(target, at + 4 * width), load(target, at + 5 * width)
        t6, t7 = load(target, at + 6 * width), load(target, at + 7 * width)
        for r in range(first, last):
            value = load(source, r * width + c)
            t0 = multiply_add(fill(factors[r, column]), value, t0)
            t1 = multiply_add(fill(factors[r, column + 1]), value, t1)
            t2 = multiply_add(fill(factors[r, column + 2]), value, t2)
            t3 = multiply_add(fill(factors[r, column + 3]), value, t3)
            t4 = multiply_add(fill(factors[r, column + 4]), value, t4)
            t5 = multiply_add(fill(factors[r, column + 5]), value, t5)
            t6 = multiply_add(fill(factors[r, column + 6]), value, t6)
            t7 = multiply_add(fill(factors[r, column + 7]), value, t7)
        store(target, at, t0)
        store(target, at + width, t1)
        store(target, at + 2 * width, t2)
        store(target, at + 3 * width, t3)
        store(target, at + 4 * width, t4)
        store(target, at + 5 * width, t5)
        store(target, at + 6 * width, t6)
        store(target, at + 7 * width, t7)


@subroutine
def add_dots(target, column, source, rows, row, first, last, start, end, columns):
    """``target[r, column + j] += Σ_c source[r, c] · rows[row + j, c]`` for j < 8, r in first..last-1 and c in
    start..end-1.

    ``columns`` ``[width, 8]`` is room for a copy of the eight rows.
    """
    width = target.shape[1]
    for j in range(LANES):
        for c in range(start, end):
            columns[c, j] = rows[row + j, c]
    fours = first + (last - first) // 4 * 4
    for r in range(first, fours, 4):
        at = r * width + column
        t0, t1 = load(target, at), load(target, at + width)
        t2, t3 = load(target, at + 2 * width), load(target, at + 3 * width)
        for c in range(start, end):
            value = load(columns, c * LANES)
            t0 = multiply_add(fill(source[r, c]), value, t0)
            t1 = multiply_add(fill(source[r + 1, c]), value, t1)
            t2 = multiply_add(fill(source[r + 2, c]), value, t2)
            t3 = multiply_add(fill(source[r + 3, c]), value, t3)
        store(target, at, t0)
        store(target, at + width, t1)
        store(target, at + 2 * width, t2)
        store(target, at + 3 * width, t3)
    for r in range(fours, last):
        total = load(target, r * width + column)
        for c in range(start, end):
            total = multiply_add(fill(source[r, c]), load(columns, c * LANES), total)
        store(target, r * width + column, total)


@subroutine
def add_earlier_rows(target, factors, source, row, start, end):
    """``target[row + j, c] += Σ_i factors[row + j, row + i] · source[row + i, c]`` for i < j < 8 and c in start..end-1.

    ``target`` may be ``source``: the first rows are complete before they are added to later ones.
    """
    width = target.shape[1]
    for c in range(start, end, LANES):
        for j in range(row + 1, row + LANES):
            total = load(target, j * width + c)
            for i in range(row, j):
                total = multiply_add(fill(factors[j, i]), load(source, i * width + c), total)
            store(target, j * width + c, total)


@subroutine
def add_later_rows(target, factors, source, row, start, end):
    """``target[row + j, c] += Σ_i factors[row + i, row + j] · source[row + i, c]`` for j < i < 8 and c in start..end-1.

    ``target`` may be ``source``: the last rows are complete before they are added to earlier ones.
    """
    width = target.shape[1]
    for c in range(start, end, LANES):
        for j in range(row + LANES - 2, row - 1, -1):
            total = load(target, j * width + c)
            for i in range(j + 1, row + LANES):
                total = multiply_add(fill(factors[i, j]), load(source, i * width + c), total)
            store(target, j * width + c, total)
