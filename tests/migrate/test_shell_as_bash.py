"""A script's words are those that a shell would hand over: bash itself says what is right."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from embodied.migrate.shell.keys import read_script
from embodied.migrate.shell.run import ways
from embodied.migrate.shell.syntax import prepared

pytest.importorskip("tree_sitter_bash", reason="pip install 'embodied-rl[migrate]'")

SNIPPETS = r"""
R=$((1+2*3-4/3%2))
R=$((-7/2)),$((-7%2)),$((7%-2))
R=$((2**3**2)),$((-2**2)),$((~5)),$((!0)),$((5>3&&2>1||0))
R=$((0x1F+010+2#101+36#z))
R=$((1<<4|3^5&6)),$((100>>2))
a=5; R=$((a++ + ++a)),$a,$((a--)),$((--a)),$a
a=3; R=$((a>2?a*2:a/0)),$(( a<2 ? a/0 : 7 ))
a=3; b=a+1; R=$((b*2)),$((a+=4)),$((a<<=2)),$a,$((a,9))
R=$((9223372036854775807+1))
a=7; R=$(( (a + 1) * 2 )),$(((a+1)*2)),$[a+1]
R=$((a=4, a*2))
A=x; R="$A"'$A'"\$A\\\"\a"\ \$A$'\x41\t\101'
A=; R=${A:-d},${A-d},${A:+x},${A+x},${B:-e},${B-f},${B:+x},${B+x}
: ${A:=q}; R=$A${C:=w}$C
P=/a/b.c/d.e.f; R=${P%.*},${P%%.*},${P#*/},${P##*/},${P%/*},${P##*.},${#P}
P=aXbXc; R=${P/X/-},${P//X/-},${P/#a/z},${P/%c/z},${P//X},${P/[aX]/q},${P//[^X]/_}
P=a/b/c; R=${P//\//_},${P/\//},${P//"/"/+}
P=hello; R=${P^},${P^^},${P:1},${P:1:2},${P: -3},${P:0:-1},${P: -3:2}
P=HeLLo; R=${P,},${P,,},${P,,[L]}
A=B; B=c; R=${!A}
A=(x y "z w"); R="${A[1]},${A[-1]},${#A[@]},${A[*]},${A[@]:1},${#A[2]},$A"
A=(1 2); A+=(3 4); A[7]=9; R="${A[*]},${#A[@]},${!A[*]}"
A=x; A+=y; A+="z$A"; R=$A
declare -A M=([a]=1 ["b c"]=2); M[d]=3; k=d; R=${M[a]},${M["b c"]},${M[$k]},${#M[@]}
A=(a.x b.y); R="${A[*]%.*} ${A[@]/#/p}"
i=2; A=(a b c d); R=${A[i]},${A[$i+1]},${A[$((i-1))]}
export X=1 Y="2 3"; R=$X$Y
readonly Z=4; R=$Z
f() { local a=1; R=$1-$a-$#-$2; a=5; }; a=9; f q; R=$R$a
f() { b=$1; return 3; }; if f x; then R=y$b; else R=n$b; fi
for x in a b {1..3} c{d,e}f; do R=$R$x; done
for ((i=0;i<4;i++)); do R=$R$i; done
i=0; while [ $i -lt 5 ]; do i=$((i+2)); R=$R.$i; done
i=0; until (( i >= 3 )); do ((i++)); if [ $i = 2 ]; then continue; fi; R=$R$i; done
for x in 1 2 3 4; do if [[ $x == 3 ]]; then break; fi; R=$R$x; done
for x in a b; do for y in 1 2; do R=$R$x$y; [ $y = 1 ] && continue 1; done; done
M=b2; case "$M" in a) R=1;; b*|c) R=2;; *) R=3;; esac
M=zz; case $M in a) R=1;; "b*") R=2;; [x-z]?) R=4;; *) R=3;; esac
M=a; case $M in a) R=1;& b) R=${R}2;; *) R=3;; esac
M=a; case $M in a) R=1;;& b) R=${R}2;; *) R=${R}3;; esac
A=x; if [ "$A" = x ] && [[ $A == x* ]]; then R=1; elif [ 1 ]; then R=2; else R=3; fi
A=5; [ $A -gt 3 ] && R=big || R=small
A=5; [[ $A -gt 3 && ( $A -lt 4 || $A == 5 ) ]] && R=yes
A=; [ -z "$A" ] && R=empty; [ -n "$A" ] || R=$R.no
[[ abc =~ ^a.c$ ]] && R=m; [[ abc =~ "a.c" ]] || R=${R}n
[ ! a = b ] && R=1; ! [ a = b ] && R=${R}2; if ! [[ a == b ]]; then R=${R}3; fi
A="a b  c"; set -- $A; R=$#,$2
A="x y"; B=($A "$A"); R=${#B[@]}
R=a\
b
R="a\
b"
R=~/x
A='a"b'; R="q${A}r"'s'"t"
R="${A:-"q r"}${B:-'s t'}"
R=${A:-"q r"}${B:-'s t'}${C:-u v}
R="${A:-a}b}"; R=${A:-x\}y}
unset A; A=1; unset A; R=${A:-gone}$A
(R=sub); R=$R.x
{ R=1; }; R=${R}2
A=1 R=2; R=$R$A
A=1 B=2
R=$A$B
A=; A=1 true; R=x$A
eval "R=\$((1+1))"; eval R2=5; R=$R$R2
let "R = 2 * 3" S=R+1; R=$R$S
((R=5, R*=3)); R=$R
declare -i n=3+4; R=$n
set -- a b c; shift; R=$1$#; R=$R"$*"
A=(a b); set -- "${A[@]}" c; R=$#$3
N=3; for i in 1 2; do N=$((N*2)); done; R=$N
A=a,b,c; R=${A//,/ }; B=(${A//,/ }); R=$R${#B[@]}
A=abc; R=${A:$((1)):1}${A:0:${#A}-1}
A=10; (( A > 5 )) && R=1 || R=0
A=10; R=$(( A > 5 && A < 20 ))$(( A == 10 ? 1 : 0 ))
V=true; if $V; then R=1; else R=2; fi
V=True; if [ "$V" = "True" -a "$V" != "x" ]; then R=1; fi
x=1; if [ $x -eq 1 ] || false; then R=a; fi
R=$'it\'s'"it's"
R=\'a\'\"b\"
R="[\"a\",\"b\"]"; R=$R'{"a":1}'
A=(a=1 # comment
 b=2
 # more
 "c d=3"); R="${A[*]}|${#A[@]}"
A=v; R=[$A,$A]; R=$R{$A,b}x/$A/y-$A.z
R=a#b # c
cat <<EOF >/dev/null
it's $X "
EOF
R=1
function g { R=$1; }; g "a b"
A="1 2"; for x in $A 3; do R=$R-$x; done
A=(p q); for x in "${A[@]}"; do R=$R-$x; done
R=${UNSET1:-${UNSET2:-deep}}
A=abc; R=${A:+${A}x}
A=x.y.z; R=${A%%.*}${A#*.}${A/./}
A=0; R=$((A)); [ "$A" ] && R=${R}t
A=08; R=$((10#$A+1))
A=(1 2 3); IFS=,; R="${A[*]}"
IFS=:; A=a:b:c; for x in $A; do R=$R-$x; done
f() { local IFS=,; R="$*"; }; f 1 2; A="x y"; for x in $A; do R=$R-$x; done
"""
"""Each gives R a value; a snippet ends where bash takes it for whole and it has said R."""
UNFINISHED = ("\\", "<<EOF >/dev/null", "A=1 B=2")


def snippets() -> list[str]:
    found, lines = [], list[str]()
    for line in SNIPPETS.strip("\n").split("\n") if shutil.which("bash") else []:
        lines.append(line)
        text = "\n".join(lines)
        is_open = "<<EOF" in text and "EOF" not in lines[1:]
        if line.endswith(UNFINISHED) or "R" not in line or is_open:
            continue
        if subprocess.run(["bash", "-n", "-c", text], capture_output=True).returncode == 0:
            found.append(text)
            lines = []
    return found


needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")


@needs_bash
@pytest.mark.parametrize("snippet", snippets())
def test_a_name_has_the_value_that_bash_gives_it(snippet):
    script = f"R=\n{snippet}"
    bash = subprocess.run(["bash", "-c", f'{script}\nprintf "%s" "$R"'], capture_output=True, encoding="utf-8")
    (state,) = ways(prepared(script)[0], "run.sh")
    found = state.text("R")
    assert found is None or found.known
    assert (found.shown if found else "") == bash.stdout


@needs_bash
@pytest.mark.parametrize(
    "words",
    [
        """'data.train_files=["a","b"]' +k.b=1 ++k.c=2 a.b=x\\ y "c.d=[$A, $B]" e.f=[$A,$B] g.h=$A/$B-$A.z""",
        """a.b="it's" c.d='say "x"' e.f=$'tab\\t' g.h="\\"q\\"" i.j='{"a":1}' k.l=a#b""",
        """a.b={x,y}_$A c.d="${L[@]}" "${L[@]/#/e.}" ${L[*]} g.h="${L[*]}" 2>&1""",
        """a.b=${N:-1} c.d=${A:+yes} e.f="${N:-"q r"}" g.h=${N-"$A"} i.j=${N:-[1,2]} k.l=${N:-['x','y']}""",
        "a.b=1 \\\n  c.d=2 \\\n\te.f=3 \\\n",
        'a.b="two\nlines" c.d=$((2*3))$((1+1)) e.f=$[4-1] g.h=$(((1+2)*3))',
        "a.b='x'\\''y' c.d=é e.f=~/x ~ g.h=[[1,2],[3]] i.j={$A,$B}",
    ],
)
def test_a_command_is_given_the_words_that_bash_gives_it(words):
    before = "A=one B=two\nL=(p=1 'q=2 3')\n"
    show = 'main() { printf "%s\\0" "$@"; }\n'
    bash = subprocess.run(["bash", "-c", f"{show}{before}main {words}"], capture_output=True, encoding="utf-8")
    (state,) = ways(prepared(f"{before}main {words}")[0], "run.sh")
    (command,) = state.commands
    assert [word.shown for word in command.words[1:]] == bash.stdout.split("\0")[:-1]


def test_a_carriage_return_and_a_byte_order_mark_are_no_part_of_a_value():
    script = read_script("\ufeffN=4\r\nmain a.b=$N \\\r\n  c.d=x\r\n", "run.sh")
    assert script.keys == {"a": {"b": 4}, "c": {"d": "x"}}
