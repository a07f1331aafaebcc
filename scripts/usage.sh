# Sourced by the other scripts: how they answer --help, unknown options and too many arguments.

# structattn_usage FILE OPTIONS MOST [ARGUMENT ...]
#
# Where --help or -h is among the arguments, prints the comment that FILE begins with, and exits. Refuses, by code 2, an
# option that is not among OPTIONS, one whose value is missing, and more than MOST other arguments (- for any number).
# OPTIONS are separated by spaces; one that ends in = has a value, in the argument after it; with -- among them, what
# follows -- is not looked at.
structattn_usage() {
    local file="$1" options=" $2 " most="$3" argument taken=0
    shift 3
    for argument in "$@"; do
        [[ "$argument" != -- ]] || break
        if [[ "$argument" == --help || "$argument" == -h ]]; then
            sed -e '1{/^#!/d;}' -e '/^#/!q' "$file" | sed -n 's/^# \{0,1\}//p'
            exit 0
        fi
    done
    while [[ $# -gt 0 ]]; do
        if [[ "$1" == -- && "$options" == *" -- "* ]]; then
            return
        elif [[ "$options" == *" $1= "* ]]; then
            [[ $# -gt 1 ]] || structattn_refuse "$file" "$1 needs a value"
            shift
        elif [[ "$1" == -?* ]]; then
            [[ "$options" == *" $1 "* ]] || structattn_refuse "$file" "unknown option $1"
        else
            taken=$((taken + 1))
            [[ "$most" == - || "$taken" -le "$most" ]] || structattn_refuse "$file" "unexpected argument '$1'"
        fi
        shift
    done
}

# structattn_refuse FILE MESSAGE  tells what is wrong with the call of FILE, and exits by code 2.
structattn_refuse() {
    printf 'error: %s; see: bash %s --help\n' "$2" "$1" >&2
    exit 2
}

if [[ "${BASH_SOURCE[0]}" == "$0" ]]; then
    structattn_usage "$0" "" 0 "$@"
    structattn_refuse "$0" "it is there to be sourced"
fi
