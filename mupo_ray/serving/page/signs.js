/* What LaTeX's commands for signs stand for. */

export const LETTERS = {
  alpha: 'α', beta: 'β', gamma: 'γ', delta: 'δ', epsilon: 'ϵ', varepsilon: 'ε', zeta: 'ζ',
  eta: 'η', theta: 'θ', vartheta: 'ϑ', iota: 'ι', kappa: 'κ', lambda: 'λ', mu: 'μ', nu: 'ν',
  xi: 'ξ', pi: 'π', rho: 'ρ', sigma: 'σ', tau: 'τ', upsilon: 'υ', phi: 'ϕ', varphi: 'φ',
  chi: 'χ', psi: 'ψ', omega: 'ω', Gamma: 'Γ', Delta: 'Δ', Theta: 'Θ', Lambda: 'Λ', Xi: 'Ξ',
  Pi: 'Π', Sigma: 'Σ', Phi: 'Φ', Psi: 'Ψ', Omega: 'Ω', ell: 'ℓ', infty: '∞', emptyset: '∅',
  varnothing: '∅', partial: '∂', nabla: '∇', hbar: 'ℏ', degree: '°', Re: 'ℜ', Im: 'ℑ',
};

export const OPERATORS = {
  times: '×', cdot: '⋅', div: '÷', pm: '±', mp: '∓', ast: '∗', circ: '∘', bullet: '•',
  le: '≤', leq: '≤', leqslant: '≤', ge: '≥', geq: '≥', geqslant: '≥', ne: '≠', neq: '≠',
  lt: '<', gt: '>', ll: '≪', gg: '≫', approx: '≈', equiv: '≡', sim: '∼', simeq: '≃', cong: '≅',
  propto: '∝', parallel: '∥', perp: '⊥', mid: '∣', angle: '∠', triangle: '△', square: '□',
  in: '∈', notin: '∉', subset: '⊂', subseteq: '⊆', supset: '⊃', cup: '∪', cap: '∩',
  setminus: '∖', to: '→', rightarrow: '→', leftarrow: '←', Rightarrow: '⇒', implies: '⟹',
  Leftrightarrow: '⇔', iff: '⟺', leftrightarrow: '↔', mapsto: '↦', therefore: '∴',
  because: '∵', ldots: '…', dots: '…', cdots: '⋯', vdots: '⋮', prime: '′', forall: '∀',
  exists: '∃', neg: '¬', land: '∧', lor: '∨', oplus: '⊕', otimes: '⊗', star: '⋆',
  checkmark: '✓', langle: '⟨', rangle: '⟩', lbrace: '{', rbrace: '}', lvert: '|', rvert: '|',
  vert: '|', lfloor: '⌊', rfloor: '⌋', lceil: '⌈', rceil: '⌉',
  '{': '{', '}': '}', '%': '%', $: '$', '#': '#', '&': '&', _: '_', '|': '∥',
};

export const BIG = { sum: '∑', prod: '∏', int: '∫', bigcup: '⋃', bigcap: '⋂', oint: '∮' };

export const SPACES = {
  ',': '.17em', ':': '.22em', ';': '.28em', '!': '-.17em', ' ': '.33em', '>': '.22em',
  quad: '1em', qquad: '2em', thinspace: '.17em',
};

export const BARE_FUNCTIONS = new Set([
  'sin', 'cos', 'tan', 'cot', 'sec', 'csc', 'arcsin', 'arccos', 'arctan', 'sinh', 'cosh', 'tanh',
  'log', 'ln', 'lg', 'exp', 'lim', 'max', 'min', 'gcd', 'lcm', 'det', 'dim', 'deg', 'mod',
]);

export const FENCES = {
  '(': '(', ')': ')', '[': '[', ']': ']', '|': '|', '/': '/', '.': '', '\\{': '{', '\\}': '}',
  '\\|': '∥', '\\lbrace': '{', '\\rbrace': '}', '\\langle': '⟨', '\\rangle': '⟩',
  '\\lvert': '|', '\\rvert': '|', '\\vert': '|', '\\lfloor': '⌊', '\\rfloor': '⌋',
  '\\lceil': '⌈', '\\rceil': '⌉',
};

export const DOUBLE_STRUCK = { C: 'ℂ', N: 'ℕ', P: 'ℙ', Q: 'ℚ', R: 'ℝ', Z: 'ℤ' };
