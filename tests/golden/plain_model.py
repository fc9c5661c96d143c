# SPDX-License-Identifier: Apache-2.0
"""A second, plain computation in float64 numpy of what cases.json holds, for check_golden.py."""
import math

import numpy as np


def frequencies(config, rope, head_dim, max_model_len):
    """Inverse frequencies [head_dim / 2] and the factor on cos and sin."""
    kind, base, factor = rope["rope_type"], rope["rope_theta"], rope.get("factor")
    exponents = np.arange(0, head_dim, 2) / head_dim
    if kind == "dynamic":
        length = config["max_position_embeddings"]
        base *= (factor * max_model_len / length - (factor - 1)) ** (head_dim / (head_dim - 2))
    inverse = base ** -exponents
    if rope.get("divisors") is not None:
        return inverse / rope["divisors"], 1.0
    if kind == "linear":
        return inverse / factor, 1.0
    original = rope.get("original_max_position_embeddings")
    if kind == "longrope":
        length = config["max_position_embeddings"]
        factor = factor or length / original
        attention = rope.get("attention_factor") or math.sqrt(1 + math.log(factor) / math.log(original))
        return inverse / rope["long_factor" if (max_model_len or length) > original else "short_factor"], attention
    if kind == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        smooth = np.clip((original * inverse / (2 * math.pi) - low) / (high - low), 0, 1)
        return (1 - smooth) * inverse / factor + smooth * inverse, 1.0
    if kind == "yarn":
        return yarn(rope, base, head_dim, inverse, factor, original)
    return inverse, 1.0


def yarn(rope, base, head_dim, inverse, factor, original):
    def dimension(rotations):
        return head_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(rope.get("beta_fast") or 32), dimension(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = np.clip((np.arange(head_dim // 2) - low) / max(high - low, 0.001), 0, 1)

    def mscale(weight):
        return 0.1 * weight * math.log(factor) + 1

    attention = rope.get("attention_factor")
    if attention is None:
        both = rope.get("mscale") and rope.get("mscale_all_dim")
        attention = mscale(rope["mscale"]) / mscale(rope["mscale_all_dim"]) if both else mscale(1)
    return inverse / factor * ramp + inverse * (1 - ramp), attention


def is_turned(config, layer):
    if config["model_type"] != "smollm3":
        return True
    turned = config.get("no_rope_layers")
    return bool(turned[layer]) if turned else (layer + 1) % 4 != 0


PERIODS = {"olmo3": 4, "gemma2": 2, "gemma3_text": 6, "gpt_oss": 2}  # of so many layers the last is full


def window_of(config, layer):
    types = config.get("layer_types")
    if config["model_type"] in ("olmo2", "olmo3", "gemma2", "gemma3", "gemma3_text", "gpt_oss"):
        period = config.get("sliding_window_pattern", PERIODS.get(config["model_type"], 1))
        slides = types[layer] == "sliding_attention" if types else (layer + 1) % period != 0
        return config["sliding_window"] if slides else None
    if config["model_type"] in ("mistral", "phi3", "starcoder2"):
        return config.get("sliding_window")
    if config.get("use_sliding_window") and layer >= config["max_window_layers"]:
        return config["sliding_window"]
    return None


def silu(x):
    return x / (1 + np.exp(-x))


def gelu_tanh(x):
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def capped(x, cap):
    return x if cap is None else cap * np.tanh(x / cap)


class Plain:
    def __init__(self, config, weights, adapters, max_model_len=0):
        """adapters: [(Adapter, scale)]"""
        self.config, self.weights, self.adapters = config, dict(weights), adapters
        self.head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        self.turned = int(self.head_dim * config.get("partial_rotary_factor", 1))
        self.ropes = [frequencies(config, config[which], self.turned, max_model_len)
                      for which in ("rope", "sliding_rope")]
        self.activation = gelu_tanh if config.get("activation", config["model_type"]).startswith("gemma") else silu
        for adapter, _ in adapters:
            self.weights |= adapter.full
            for module, (ids, rows) in adapter.rows.items():
                changed = self.weights[module + ".weight"].copy()
                changed[ids] = rows
                self.weights[module + ".weight"] = changed

    def starts(self, prompt):
        """The first row at which each adapter applies."""
        result = []
        for adapter, _ in self.adapters:
            mark = adapter.invocation
            places = [i for i in range(len(prompt)) if mark and prompt[i:i + len(mark)] == mark]
            result.append(0 if not mark else places[-1] if places else len(prompt) * 1000)
        return result

    def deltas(self, module):
        for (adapter, scale), start in zip(self.adapters, self.first):
            if module in adapter.deltas:
                a, b, bias, own = adapter.deltas[module]
                yield a, b, 0 if bias is None else bias, own * scale, start

    def linear(self, x, module):
        bias = self.weights.get(module + ".bias", 0)
        if self.config.get("without_bias", "no module") in module:
            bias = 0
        y = x @ self.weights[module + ".weight"].T + bias
        for a, b, bias, scale, start in self.deltas(module):
            y[start:] += (x[start:] @ a.T @ b.T + bias) * scale
        return y

    def embed(self, ids):
        x = self.weights["model.embed_tokens.weight"][ids]
        for a, b, _, scale, start in self.deltas("model.embed_tokens"):
            x[start:] += a.T[ids[start:]] @ b.T * scale
        return x * self.config.get("embedding_multiplier", 1)

    def norm(self, x, name):
        if name + ".bias" in self.weights:
            x = x - x.mean(-1, keepdims=True)
            scale = np.sqrt((x * x).mean(-1, keepdims=True) + self.config["norm_epsilon"])
            return x / scale * self.weights[name + ".weight"] + self.weights[name + ".bias"]
        scale = np.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_norm_eps"])
        less = self.config.get("norms_less_one") and not name.endswith("linear_attn.norm")
        return x / scale * (self.weights[name + ".weight"] - (1 if less else 0))

    def normed(self, x, name):
        """By a norm that not every model has."""
        return self.norm(x, name) if name + ".weight" in self.weights else x

    def rotate(self, x, layer):
        """[tokens, heads, head_dim], halves of the first `turned` turned against each other"""
        x, kept = x[..., :self.turned], x[..., self.turned:]
        two = self.config["model_type"] in ("olmo2", "olmo3", "gemma3", "gemma3_text")
        inverse, factor = self.ropes[two and window_of(self.config, layer) is not None]
        angle = np.arange(len(x))[:, None, None] * inverse
        cos, sin = np.cos(angle) * factor, np.sin(angle) * factor
        if self.config["model_type"] in ("glm", "glm4"):  # neighbours, not halves
            left, right = x[..., 0::2], x[..., 1::2]
            pairs = np.stack([left * cos - right * sin, right * cos + left * sin], -1).reshape(x.shape)
            return np.concatenate([pairs, kept], -1)
        left, right = np.split(x, 2, -1)
        return np.concatenate([left * cos - right * sin, right * cos + left * sin, kept], -1)

    def attention(self, x, prefix, layer):
        tokens, heads, kv = len(x), self.config["num_attention_heads"], self.config["num_key_value_heads"]
        q, k, v = (self.linear(x, f"{prefix}.{p}_proj").reshape(tokens, -1, self.head_dim) for p in "qkv")
        gated = self.config["model_type"].startswith("qwen3_5")
        if gated:
            q, gate = q[:, 0::2], q[:, 1::2].reshape(tokens, -1)
        if self.config["model_type"] in ("olmo2", "olmo3"):  # of all heads of a token together
            q, k = (self.norm(t.reshape(tokens, -1), f"{prefix}.{n}_norm").reshape(t.shape) for t, n in ((q, "q"), (k, "k")))
        elif f"{prefix}.q_norm.weight" in self.weights:
            q, k = self.norm(q, f"{prefix}.q_norm"), self.norm(k, f"{prefix}.k_norm")
        if is_turned(self.config, layer):
            q, k = self.rotate(q, layer), self.rotate(k, layer)
        k, v = (np.repeat(t, heads // kv, 1) for t in (k, v))
        scale = self.config.get("attention_multiplier", self.config.get("query_pre_attn_scalar", self.head_dim) ** -0.5)
        score = capped(np.einsum("qhd,khd->hqk", q, k) * scale, self.config.get("attn_logit_softcapping"))
        distance = np.arange(tokens)[:, None] - np.arange(tokens)
        seen = (distance >= 0) & (distance < (window_of(self.config, layer) or tokens))
        largest = score.max(-1, keepdims=True)
        score = np.exp(np.where(seen, score, -np.inf) - largest)
        total = score.sum(-1, keepdims=True)
        sinks = self.weights.get(f"{prefix}.sinks", self.weights.get(f"{prefix}.sinks.weight"))
        if sinks is not None and self.config.get("sinks", True):
            total = total + np.exp(sinks[:, None, None] - largest)
        mixed = np.einsum("hqk,khd->qhd", score / total, v).reshape(tokens, -1)
        if gated and self.config.get("attn_output_gate", True):
            mixed = mixed / (1 + np.exp(-gate))
        return self.linear(mixed, f"{prefix}.o_proj")

    def linear_attention(self, x, prefix):
        """The gated delta rule, one token after the other."""
        config, tokens = self.config, len(x)
        heads, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
        mixed, z, b, a = (self.linear(x, f"{prefix}.in_proj_{part}") for part in ("qkv", "z", "b", "a"))
        if config.get("conv", True):
            taps = self.weights[f"{prefix}.conv1d.weight"][:, 0].T
            padded = np.concatenate([np.zeros((len(taps) - 1, mixed.shape[1])), mixed])
            mixed = sum(padded[i:i + tokens] * tap for i, tap in enumerate(taps))
        width = heads * config["linear_key_head_dim"]
        q, k, v = (t.reshape(tokens, -1, dim) for t, dim in zip(
            np.split(silu(mixed), [width, 2 * width], -1),
            [config["linear_key_head_dim"]] * 2 + [config["linear_value_head_dim"]]))
        q, k = (t / np.sqrt((t * t).sum(-1, keepdims=True) + config.get("unit_eps", 1e-6)) for t in (q, k))
        order = np.arange(values) % heads if config.get("tiled") else np.repeat(np.arange(heads), values // heads)
        q, k = q[:, order] / math.sqrt(q.shape[-1]), k[:, order]
        shift = self.weights[f"{prefix}.dt_bias"] if config.get("dt_bias", True) else 0
        decay = np.exp(-np.exp(self.weights[f"{prefix}.A_log"]) * np.log1p(np.exp(a + shift)))
        beta = 1 / (1 + np.exp(-b)) if config.get("beta", True) else np.ones_like(b)
        state, rows = np.zeros((values, q.shape[-1], v.shape[-1])), []
        for t in range(tokens):
            state = state * decay[t][:, None, None]
            delta = (v[t] - np.einsum("hkv,hk->hv", state, k[t])) * beta[t][:, None]
            state = state + np.einsum("hk,hv->hkv", k[t], delta)
            rows.append(np.einsum("hkv,hk->hv", state, q[t]))
        y = self.norm(np.stack(rows), f"{prefix}.norm") + (np.stack(rows) if config.get("gated_plus_one") else 0)
        return self.linear(y.reshape(tokens, -1) * silu(z), f"{prefix}.out_proj")

    def mlp(self, x, prefix):
        if f"{prefix}.c_fc.weight" in self.weights:
            y = self.linear(x, f"{prefix}.c_fc")
            y = y / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y ** 3)))
            return self.linear(y, f"{prefix}.c_proj")
        gate = self.linear(x, f"{prefix}.gate_proj")
        if self.config["model_type"] == "gpt_oss":
            limit, alpha = self.config.get("swiglu_limit", 7), self.config.get("swiglu_alpha", 1.702)
            gate, up = np.minimum(gate, limit), np.clip(self.linear(x, f"{prefix}.up_proj"), -limit, limit)
            y = (up + self.config.get("up_plus", 1)) * gate / (1 + np.exp(-alpha * gate))
            return self.linear(y, f"{prefix}.down_proj")
        return self.linear(self.activation(gate) * self.linear(x, f"{prefix}.up_proj"), f"{prefix}.down_proj")

    def experts(self, x, prefix):
        """Every token through the experts with its highest scores, and through the shared one."""
        scores = self.linear(x, f"{prefix}.gate")
        chance = np.exp(scores - scores.max(-1, keepdims=True))
        chance /= chance.sum(-1, keepdims=True)
        used = np.argsort(-scores, -1, kind="stable")[:, :self.config["num_experts_per_tok"]]
        weight = np.take_along_axis(chance, used, -1)
        if self.config.get("norm_topk_prob", True):
            weight /= weight.sum(-1, keepdims=True)
        y, count, other = np.zeros_like(x), scores.shape[-1], self.config.get("next_expert", 0)
        for expert in range(count):
            result = self.mlp(x, f"{prefix}.experts.{(expert + other) % count}")
            y += result * (weight * (used == expert)).sum(-1, keepdims=True)
        if f"{prefix}.shared_expert_gate.weight" in self.weights:
            gate = self.linear(x, f"{prefix}.shared_expert_gate")
            y += self.mlp(x, f"{prefix}.shared_expert") / (1 + np.exp(-gate))
        return y

    def mlp_or_experts(self, x, prefix):
        has_experts = f"{prefix}.gate.weight" in self.weights
        return (self.experts if has_experts else self.mlp)(x, prefix)

    def hidden(self, ids, prompt):
        """After the final norm; `prompt` decides where activated adapters start."""
        self.first = self.starts(prompt)
        x = self.embed(ids)
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}"
            part = self.config.get("residual_multiplier", 1)
            if f"{prefix}.post_feedforward_layernorm.weight" in self.weights:  # norms behind the blocks
                before = f"{prefix}.input_layernorm", f"{prefix}.pre_feedforward_layernorm"
                y = self.attention(self.normed(x, before[0]), f"{prefix}.self_attn", layer)
                x = x + self.norm(y, f"{prefix}.post_attention_layernorm")
                y = self.mlp(self.normed(x, before[1]), f"{prefix}.mlp")
                x = x + self.norm(y, f"{prefix}.post_feedforward_layernorm")
                continue
            if self.config["model_type"] == "glm4":
                y = self.attention(self.norm(x, f"{prefix}.input_layernorm"), f"{prefix}.self_attn", layer)
                x = x + self.norm(y, f"{prefix}.post_self_attn_layernorm")
                y = self.mlp(self.norm(x, f"{prefix}.post_attention_layernorm"), f"{prefix}.mlp")
                x = x + self.norm(y, f"{prefix}.post_mlp_layernorm")
                continue
            y = self.norm(x, f"{prefix}.input_layernorm")
            if f"{prefix}.linear_attn.A_log" in self.weights:
                x = x + self.linear_attention(y, f"{prefix}.linear_attn")
            else:
                x = x + part * self.attention(y, f"{prefix}.self_attn", layer)
            x = x + part * self.mlp_or_experts(self.norm(x, f"{prefix}.post_attention_layernorm"), f"{prefix}.mlp")
        return self.norm(x, "model.norm")

    def logits(self, ids, prompt):
        logits = self.linear(self.hidden(ids, prompt), "lm_head") / self.config.get("logits_scaling", 1)
        return capped(logits, self.config.get("final_logit_softcapping"))
