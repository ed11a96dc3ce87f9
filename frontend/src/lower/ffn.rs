//! The feed-forward sublayer: mixture of experts or one SwiGLU.

use super::attention::{shard_inner, shard_outer};
use super::{Lowerer, Made};
use crate::spec::{Ffn, Moe};
use dsc_ir::dtype::DType;
use dsc_ir::graph::{Def, Shard, TensorType, TypeError, ValueId, WeightSource};
use dsc_ir::op;

impl Lowerer<'_> {
    /// Lowers the feed-forward sublayer of layer `l` on its normed input `[T, d]`.
    pub(super) fn ffn(&mut self, l: u32, v: ValueId) -> Made {
        let spec = self.spec;
        match &spec.ffn {
            Ffn::Dense { intermediate_size, swiglu_limit } => {
                let y = self.swiglu(v, "ffn", *intermediate_size, *swiglu_limit)?;
                self.reduce(y, spec.parallel.tp, "ffn.y.reduced")
            }
            Ffn::Moe(m) => self.moe(l, m, v),
        }
    }

    /// One SwiGLU block with weights `PREFIX.w1`, `.w3`, `.w2`, its inner size split over tensor-parallel ranks.
    fn swiglu(&mut self, v: ValueId, prefix: &str, inner: u64, limit: f32) -> Made {
        let (tp, d) = (self.spec.parallel.tp, self.spec.hidden_size);
        let inner = inner / tp;
        let w1 = self.dense(&format!("{prefix}.w1"), inner, d, shard_outer(tp));
        let g = self.linear(v, w1, &format!("{prefix}.gate"))?;
        let w3 = self.dense(&format!("{prefix}.w3"), inner, d, shard_outer(tp));
        let u = self.linear(v, w3, &format!("{prefix}.up"))?;
        let h = self.float(op::SwiGlu { limit, weighted: false }, &[g, u], &format!("{prefix}.h"))?;
        let w2 = self.dense(&format!("{prefix}.w2"), d, inner, shard_inner(tp));
        self.linear(h, w2, &format!("{prefix}.y"))
    }

    fn router(&mut self, l: u32, m: &Moe, v: ValueId) -> Result<(ValueId, ValueId), TypeError> {
        let (e, k) = (m.n_routed_experts, m.num_experts_per_tok);
        let gate = self.plain("ffn.gate", e, self.spec.hidden_size);
        let z = self.one(op::Linear { heads: vec![0] }, &[v, gate], "ffn.router", DType::F32)?;
        let (norm, scale) = (m.norm_topk_prob, m.routed_scaling_factor);
        let outputs = [("ffn.experts", DType::I32), ("ffn.expert_weights", DType::F32)];
        let made = if l < m.num_hash_layers {
            let table = self.weight("ffn.gate.tid2eid", DType::I32, &[self.spec.vocab_size, k], Shard::None);
            self.graph.add(op::RouterHash { k, norm, scale }, self.layer, &[z, table, self.step], &outputs)?
        } else {
            let mut operands = vec![z, self.vector("ffn.gate.bias", &[e]), self.step];
            if m.image_bias {
                operands.push(self.vector("ffn.gate.bias_vl", &[e]));
            }
            let router = op::RouterTopK { k, norm, scale, image_bias: m.image_bias };
            self.graph.add(router, self.layer, &operands, &outputs)?
        };
        self.probe("moe_experts", made[0]);
        Ok((made[0], made[1]))
    }

    fn moe(&mut self, l: u32, m: &Moe, v: ValueId) -> Made {
        let spec = self.spec;
        let (ids, weights) = self.router(l, m, v)?;
        let (d, inner) = (spec.hidden_size, m.moe_intermediate_size);
        let (tp, ep) = (spec.parallel.tp, spec.parallel.ep);
        let experts = m.n_routed_experts / ep;
        let ids = self.local_experts(m, ids)?;
        let dtype = DType::Weight(spec.weights.experts);
        let expert = |b: &mut Self, w: &str, n: u64, k: u64| {
            b.weight(&format!("ffn.experts.{{e}}.{w}"), dtype, &[experts, n, k], shard_outer(ep))
        };
        let w1 = expert(self, "w1", inner, d);
        let w3 = expert(self, "w3", inner, d);
        let w2 = expert(self, "w2", d, inner);
        let g = self.float(op::ExpertLinear {}, &[v, ids, w1], "ffn.gate_proj")?;
        let u = self.float(op::ExpertLinear {}, &[v, ids, w3], "ffn.up_proj")?;
        let glu = op::SwiGlu { limit: m.swiglu_limit, weighted: true };
        let h = self.float(glu, &[g, u, weights], "ffn.h")?;
        let y = self.float(op::ExpertLinear {}, &[h, ids, w2], "ffn.expert_y")?;
        let shared = match m.n_shared_experts {
            0 => None,
            n => Some(self.swiglu(v, "ffn.shared_experts", inner * n, m.swiglu_limit)?),
        };
        let Some(shared) = shared.filter(|_| tp != ep) else {
            let operands: Vec<ValueId> = [y, ids].into_iter().chain(shared).collect();
            let y = self.float(op::ExpertSum { shared: shared.is_some() }, &operands, "ffn.y")?;
            return self.reduce(y, ep, "ffn.y.reduced");
        };
        // Parts that are split over other groups are summed over their own.
        let routed = self.float(op::ExpertSum { shared: false }, &[y, ids], "ffn.routed")?;
        let routed = self.reduce(routed, ep, "ffn.routed.reduced")?;
        let shared = self.reduce(shared, tp, "ffn.shared.reduced")?;
        self.float(op::Add {}, &[routed, shared], "ffn.y")
    }

    /// The chosen experts that this rank holds, by its own numbers.
    fn local_experts(&mut self, m: &Moe, ids: ValueId) -> Made {
        if self.spec.parallel.ep <= 1 {
            return Ok(ids);
        }
        // The runtime fills it in for each rank.
        let layer = self.layer.take();
        let map = self.weights.get(&("experts.local".to_string(), None)).copied();
        let map = map.unwrap_or_else(|| {
            let source = WeightSource { tensor: "@experts.local".into(), shard: Shard::None };
            let ty = TensorType::new(DType::I32, [m.n_routed_experts.into()]);
            let map = self.graph.add_value("experts.local", None, ty, Def::Weight(source));
            self.weights.insert(("experts.local".to_string(), None), map);
            map
        });
        self.layer = layer;
        self.one(op::LocalExperts {}, &[ids, map], "ffn.local_experts", DType::I32)
    }
}
