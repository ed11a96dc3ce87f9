//! Only one module may name the YAML library. Who may depend on whom is held by the tests of `cli`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failing helper is a failing test

#[test]
fn one_module_names_the_yaml_library() {
    let mut stack = vec![dsc_tests::root().join("frontend/src")];
    while let Some(folder) = stack.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                stack.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("yaml.rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                assert!(!text.contains("serde_yaml::"), "{} names serde_yaml", path.display());
            }
        }
    }
}
