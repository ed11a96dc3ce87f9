//! The residual stream: plain sums, or hyper-connections in their single-pass and multi-pass forms.

use super::{Lowerer, Made, f32_matrix};
use crate::spec::{Mhc, MhcHead, Residual};
use dsc_ir::dtype::DType;
use dsc_ir::graph::{Shard, TypeError, ValueId};
use dsc_ir::op;

/// The stream between sublayers.
pub(super) struct Stream {
    /// `[T, d]`, or `[T, n, d]` with hyper-connections.
    pub x: ValueId,
    /// Pre-mix that the next collapse uses in the single-pass form.
    pub(super) pre: Option<ValueId>,
}

/// A sublayer that was entered and not left.
pub(super) struct Site {
    name: &'static str,
    /// Normed input of the sublayer.
    pub input: ValueId,
    pub(super) mix: Option<Mix>,
}

pub(super) struct Mix {
    pub(super) pre: ValueId,
    pub(super) post: ValueId,
    pub(super) comb: ValueId,
}

impl Lowerer<'_> {
    pub(super) fn stream_start(&mut self, embedded: ValueId) -> Result<Stream, TypeError> {
        let Residual::Mhc(m) = &self.spec.residual else { return Ok(Stream { x: embedded, pre: None }) };
        let x = self.float(op::Repeat { n: m.hc_mult }, &[embedded], "stream")?;
        let pre = if m.single_pass {
            Some(self.one(op::OneHot { n: m.hc_mult, index: 0 }, &[self.step], "pre", DType::F32)?)
        } else {
            None
        };
        Ok(Stream { x, pre })
    }

    fn mhc_stats(&mut self, x: ValueId, name: &str, columns: u64, out: &str) -> Made {
        let k = self.graph.ty(x).row_elements();
        let fn_ = self.weight(name, f32_matrix(), &[columns, k], Shard::None);
        self.one(op::MhcStats { eps: self.spec.rms_norm_eps }, &[x, fn_], out, DType::F32)
    }

    fn mix(&mut self, m: &Mhc, x: ValueId, site: &str) -> Result<Mix, TypeError> {
        let columns = (2 + m.hc_mult) * m.hc_mult;
        let stats = self.mhc_stats(x, &format!("hc_{site}_fn"), columns, &format!("{site}.mix"))?;
        let scale = self.vector(&format!("hc_{site}_scale"), &[3]);
        let base = self.vector(&format!("hc_{site}_base"), &[columns]);
        let coeffs = op::MhcCoeffs { iters: m.hc_sinkhorn_iters, eps: m.hc_eps };
        let names = ["pre", "post", "comb"].map(|n| (format!("{site}.{n}"), DType::F32));
        let outputs: Vec<(&str, DType)> = names.iter().map(|(n, d)| (n.as_str(), *d)).collect();
        let made = self.graph.add(coeffs, self.layer, &[stats, scale, base], &outputs)?;
        Ok(Mix { pre: made[0], post: made[1], comb: made[2] })
    }

    /// Starts a sublayer: mixes, collapses and norms the stream.
    pub(super) fn enter(&mut self, stream: &mut Stream, site: &'static str) -> Result<Site, TypeError> {
        let norm = format!("{site}_norm");
        let input = format!("{site}.in");
        let Residual::Mhc(m) = &self.spec.residual else {
            return Ok(Site { name: site, input: self.norm(stream.x, &norm, &input)?, mix: None });
        };
        let mix = self.mix(m, stream.x, site)?;
        let pre = stream.pre.unwrap_or(mix.pre);
        let collapsed = self.float(op::Collapse {}, &[stream.x, pre], &format!("{site}.collapsed"))?;
        if m.single_pass {
            stream.pre = Some(mix.pre);
        }
        Ok(Site { name: site, input: self.norm(collapsed, &norm, &input)?, mix: Some(mix) })
    }

    /// Ends a sublayer: its output joins the stream.
    pub(super) fn leave(&mut self, stream: &mut Stream, site: Site, y: ValueId) -> Result<(), TypeError> {
        let name = format!("{}.stream", site.name);
        stream.x = match site.mix {
            None => self.float(op::Add {}, &[stream.x, y], &name)?,
            Some(m) => self.float(op::Expand {}, &[y, stream.x, m.post, m.comb], &name)?,
        };
        Ok(())
    }

    /// Ends the last sublayer on the rows of logits alone.
    pub(super) fn take_rows(&mut self, stream: &mut Stream, site: Site, y: ValueId) -> Result<(), TypeError> {
        let rows = self.out_rows;
        let y = self.take(y, rows)?;
        stream.x = self.take(stream.x, rows)?;
        if let Some(pre) = stream.pre {
            stream.pre = Some(self.take(pre, rows)?);
        }
        let mix = match site.mix {
            None => None,
            Some(m) => Some(Mix { pre: m.pre, post: self.take(m.post, rows)?, comb: self.take(m.comb, rows)? }),
        };
        self.leave(stream, Site { name: site.name, input: site.input, mix }, y)
    }

    /// The given rows of a value.
    fn take(&mut self, v: ValueId, rows: ValueId) -> Made {
        let value = self.graph.value(v);
        let (name, dtype) = (value.name.clone(), value.ty.dtype);
        self.one(op::TakeRows {}, &[v, rows], &name, dtype)
    }

    /// Input of the final norm.
    pub(super) fn stream_end(&mut self, stream: Stream) -> Made {
        let Residual::Mhc(m) = &self.spec.residual else { return Ok(stream.x) };
        let weights = match (m.head, stream.pre) {
            (MhcHead::LastPre, Some(pre)) => pre,
            _ => {
                let stats = self.mhc_stats(stream.x, "hc_head_fn", m.hc_mult, "head.mix")?;
                let (scale, base) = (self.vector("hc_head_scale", &[1]), self.vector("hc_head_base", &[m.hc_mult]));
                self.one(op::HeadCoeffs { eps: m.hc_eps }, &[stats, scale, base], "head.pre", DType::F32)?
            }
        };
        self.float(op::Collapse {}, &[stream.x, weights], "head.collapsed")
    }
}
